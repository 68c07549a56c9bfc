"""The KL's normaliser and the temperature it implies."""

import pytest

from byov_jax.bayes import temperature

SIZES = {"size": 92_000_000, "dataset_size": 1_281_167, "batch_size": 4096}


@pytest.mark.parametrize(
    ("kl_norm", "z"), [("params", 92e6), ("dataset", 1_281_167), ("batches", 312), ("none", 1)]
)
def test_normalizers(kl_norm, z):
    assert temperature.normalizer(kl_norm, **SIZES) == z


def test_temperature_one_is_the_exact_elbo():
    z = temperature.normalizer("dataset", **SIZES)
    assert temperature.temperature(1.0, dataset_size=SIZES["dataset_size"], z=z) == 1.0


def test_the_default_is_a_cold_posterior():
    z = temperature.normalizer("params", **SIZES)
    assert temperature.temperature(0.3, dataset_size=1_281_167, z=z) == pytest.approx(0.3 * 1_281_167 / 92e6)


def test_unknown_normalizer_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"kl_norm='mean' is not one of \['params', 'dataset', 'batches', 'none'\]"
    ):
        temperature.normalizer("mean", **SIZES)
