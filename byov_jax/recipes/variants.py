"""The variants that all recipes share: method[-prior][-where].

byov   byol   supervised   supervised_bbb   byov-teacher_mean   byov-teacher_moments-linear_only
"""

from typing import Any

from byov_jax.methods import TRAITS

METHODS = tuple(TRAITS)
PRIORS = ("standard", "teacher_mean", "teacher_moments")
WHERE = ("all", "no_conv", "linear_only")


def parse(variant: str) -> dict[str, Any]:
    """Return the keys of a config that a variant sets; a ValueError lists the variants."""
    method, *words = variant.split("-")
    if method not in METHODS:
        raise ValueError(f"unknown variant {variant!r}: it begins with one of {', '.join(METHODS)}")
    chosen: dict[str, Any] = {"method": method}
    if words and not TRAITS[method].bayesian:
        raise ValueError(f"unknown variant {variant!r}: {method} has neither prior nor posterior")
    for word in words:
        key = "prior" if word in PRIORS else "where"
        if word not in PRIORS + WHERE or key in chosen:
            raise ValueError(
                f"unknown variant {variant!r}: after the method come one of {', '.join(PRIORS)} and one of "
                f"{', '.join(WHERE)}, with dashes between them"
            )
        chosen[key] = word
    return chosen


def is_bayesian(variant: str) -> bool:
    """Return whether the method of a variant has a posterior."""
    return TRAITS[parse(variant)["method"]].bayesian
