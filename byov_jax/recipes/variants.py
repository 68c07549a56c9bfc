"""The variants that all recipes share: method[-prior][-where][-decay].

byov   byol   byol-no_decay   supervised   supervised_bbb   byov-teacher_mean
byov-teacher_moments-linear_only
"""

from typing import Any

from byov_jax.methods import TRAITS

METHODS = tuple(TRAITS)
PRIORS = ("standard", "teacher_mean", "teacher_moments")
WHERE = ("all", "no_conv", "linear_only")
DECAY = ("decay", "no_decay")
WORDS = PRIORS + WHERE + DECAY


def parse(variant: str) -> dict[str, Any]:
    """Return the keys of a config that a variant sets, without its decay; a ValueError lists the variants."""
    return {key: value for key, value in _words(variant).items() if key != "decay"}


def decays(variant: str) -> bool:
    """Return whether weights decay: those of deterministic methods, unless the variant says otherwise.

    Bayesian methods are regularised by the KL, which is much weaker: a comparison of posterior against point
    estimate alone needs `byol-no_decay`, or `byov-decay`.
    """
    words = _words(variant)
    return words.get("decay", "no_decay" if TRAITS[words["method"]].bayesian else "decay") == "decay"


def _words(variant: str) -> dict[str, str]:
    method, *words = variant.split("-")
    if method not in METHODS:
        raise ValueError(f"unknown variant {variant!r}: it begins with one of {', '.join(METHODS)}")
    chosen = {"method": method}
    for word in words:
        key = "prior" if word in PRIORS else "where" if word in WHERE else "decay"
        if word not in WORDS or key in chosen:
            raise ValueError(
                f"unknown variant {variant!r}: after the method come one of {', '.join(PRIORS)}, one of "
                f"{', '.join(WHERE)}, and one of {', '.join(DECAY)}, with dashes between them"
            )
        if key != "decay" and not TRAITS[method].bayesian:
            raise ValueError(f"unknown variant {variant!r}: {method} has neither prior nor posterior")
        chosen[key] = word
    return chosen
