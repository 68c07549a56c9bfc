"""Signs of a training that goes wrong, in a line of metrics."""

import pytest

from byov_jax.training import monitor

HEALTHY = {"loss": 2.0, "embedding_std": 0.9, "kl_scaled": 1.0, "kl_per_weight": 11.0}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (HEALTHY, None),
        ({"loss": 2.0}, None),  # a deterministic method without embeddings
        (HEALTHY | {"kl_scaled": 6.0}, None),
        (HEALTHY | {"kl_scaled": 6.1}, "kl"),
        (HEALTHY | {"kl_scaled": 6.1, "kl_per_weight": 4.5}, None),  # as it starts
        (HEALTHY | {"embedding_std": 0.04}, "collapsed"),
    ],
)
def test_a_warning_has_a_reason(line, kind):
    found = monitor.diagnose(line)
    assert (found and found.kind) == kind


def test_a_kl_that_outweighs_the_data_is_named_with_a_remedy():
    """As `teacher_moments` comes to, whose variance shrinks faster than sigma follows."""
    text = monitor.diagnose(HEALTHY | {"loss": 1.0, "kl_scaled": 15.0, "kl_per_weight": 51.0}).text
    assert "grown to 51 nats per weight, and weighted, 15, outweighs the loss of 1:" in text
    assert "prior=teacher_moments" in text
