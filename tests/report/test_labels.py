"""Names of runs say what sets them apart, and no more."""

import pytest
from report.synthetic import write_run

from byov_jax.report import labels, runs


@pytest.fixture
def named(tmp_path):
    """Writes runs, `(method, config)`, and returns their names."""

    def make(*given):
        paths = [
            write_run(tmp_path / f"run_{i}", method, parts=[], curves=False, **config)
            for i, (method, config) in enumerate(given)
        ]
        return labels.names([runs.read(path) for path in paths])

    return make


def test_different_methods_need_no_more_than_their_names(named):
    assert named(("byol", {}), ("byov", {}), ("supervised_bbb", {})) == ["BYOL", "BYOV", "supervised BBB"]


def test_what_varies_is_in_the_name(named):
    found = named(
        ("byov", {"prior": "standard", "beta_end": 0.3}),
        ("byov", {"prior": "teacher_moments", "beta_end": 0.3}),
        ("byov", {"prior": "standard", "beta_start": 1.0, "beta_end": 1.0}),
    )
    assert found == ["BYOV · N(0, I) · β 0→0.3", "BYOV · N(μ_T, Σ_T) · β 0→0.3", "BYOV · N(0, I) · β 1"]


def test_other_keys_are_spelled_out(named):
    found = named(("byov", {"where": "all"}), ("byov", {"where": "no_conv", "optimizer": {"warmup": 5}}))
    assert found == ["BYOV · all · optimizer.warmup=0", "BYOV · no_conv · optimizer.warmup=5"]


def test_seeds_are_named_where_a_setting_has_several(named):
    assert named(("byov", {}), ("byov", {"seed": 1}), ("byol", {})) == [
        "BYOV · seed 0",
        "BYOV · seed 1",
        "BYOL",
    ]


def test_the_same_config_twice_is_told_apart_by_its_folder(named):
    assert named(("byol", {}), ("byol", {})) == ["BYOL · run_0", "BYOL · run_1"]


def test_what_does_not_matter_makes_no_setting(named):
    assert named(("byol", {"beta_end": 0.3, "log_every": 1}), ("byol", {"beta_end": 1.0, "seed": 2})) == [
        "BYOL · seed 0",
        "BYOL · seed 2",
    ]


def test_keys_that_may_change_when_a_run_is_resumed_make_no_setting(named):
    ours = {"watchdog": 60.0, "keep": {"last": 9}, "data": {"classes": 3, "workers": 2}}
    assert named(("byov", ours), ("byov", {"seed": 1})) == ["BYOV · seed 0", "BYOV · seed 1"]
