"""The KL normaliser Z of `mean loss + beta * KL / Z` and the posterior temperature `beta * N / Z` it implies.

Libraries differ in Z by orders of magnitude: it is chosen by name, and the temperature is always reported.
"""


def normalizer(kl_norm: str, *, size: int, dataset_size: int, batch_size: int) -> float:
    """Return the divisor Z of the KL.

    Args:
      kl_norm: `"params"`: mean KL per Bayesian scalar; `"dataset"`: the exact (generalised) ELBO of a mean
        loss; `"batches"`: the number of batches per epoch; `"none"`: 1.
      size: number of Bayesian scalars P.
      dataset_size: number of training images N.
      batch_size: images per optimizer step, over all devices.
    """
    choices = {
        "params": size,
        "dataset": dataset_size,
        "batches": dataset_size // batch_size,
        "none": 1,
    }
    if kl_norm not in choices:
        raise ValueError(f"kl_norm={kl_norm!r} is not one of {list(choices)}")
    return float(max(choices[kl_norm], 1))


def temperature(beta, *, dataset_size: int, z: float):
    """`T_eff = beta * N / Z`: 1 is the exact posterior, below 1 a cold one, above 1 a warm one."""
    return beta * (dataset_size / z)
