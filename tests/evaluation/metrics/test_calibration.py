"""The accumulator: the one-shot metrics whatever the batches, masks, weights, devices and precision."""

import functools

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import Mesh, PartitionSpec

from byov_jax.evaluation import metrics
from byov_jax.evaluation.metrics import calibration
from byov_jax.evaluation.metrics.calibration import Calibration

N, CLASSES, BATCH = 5000, 10, 64
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
EXACT = (
    "top1",
    "nll",
    "brier",
    "reliability",
    "resolution",
    "uncertainty",
    "within_covariance",
    "ece",
    "mce",
)
ORDERED = ("adaptive_ece", "aurc", "risk_coverage")  # those that a histogram gives approximately


def classifier(n: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confident predictions of unbalanced labels; the last class has no labels."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) ** 2 * (classes - 1)).astype(np.int32)
    logits = rng.normal(size=(n, classes)) * 3 + 4 * np.eye(classes)[labels]
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (probs / probs.sum(axis=1, keepdims=True)).astype(np.float32), labels


P, Y = classifier(N, CLASSES)


def binary(confidence) -> np.ndarray:
    """Two classes, the first predicted with the given confidence."""
    return np.stack([confidence, 1 - confidence], axis=1).astype(np.float32)


def reference(probs, labels, bins: int = 15) -> dict:
    """Every exact field of the report by its definition, in float64."""
    confidence, bin_edges = probs.max(axis=1), np.arange(bins + 1, dtype=np.float64) / bins
    place = np.searchsorted(bin_edges.astype(probs.dtype)[1:-1], confidence)
    p, y = probs.astype(np.float64), np.eye(probs.shape[1])[labels]
    predicted = np.argmax(p, axis=1)
    group = np.eye(probs.shape[1])[predicted]
    d, m = ((group.T @ x / np.maximum(group.sum(axis=0), 1)[:, None])[predicted] for x in (y, p))
    own = p[np.arange(len(p)), labels]
    lower = np.arange(probs.shape[1])[None] < labels[:, None]
    rank = np.sum((p > own[:, None]) | ((p == own[:, None]) & lower), axis=1)
    columns = (np.ones(len(p)), confidence, rank == 0)
    samples, sum_confidence, hits = (np.bincount(place, x, minlength=bins) for x in columns)
    many = np.maximum(samples, 1)
    gaps = np.abs(hits - sum_confidence)
    return {
        "samples": len(p),
        "top1": np.mean(rank < 1),
        "top5": np.mean(rank < 5),
        "nll": -np.mean(np.log(np.maximum(own, np.finfo(probs.dtype).tiny))),
        "brier": np.mean(np.sum((p - y) ** 2, axis=1)),
        "reliability": np.mean(np.sum((p - d) ** 2, axis=1)),
        "resolution": np.mean(np.sum((d - y.mean(axis=0)) ** 2, axis=1)),
        "uncertainty": 1 - np.sum(y.mean(axis=0) ** 2),
        "within_covariance": np.mean(np.sum((p - m) * (y - d), axis=1)),
        "ece": np.sum(gaps) / len(p),
        "mce": np.max(gaps / many),
        "entropy": np.mean(scipy.special.entr(p).sum(axis=1)),
        "reliability_bins": metrics.ReliabilityBins(samples, sum_confidence / many, hits / many),
    }


@functools.cache
def expected() -> dict:
    return reference(P, Y)


def assert_reports(report, expected: dict):
    assert set(expected) | set(ORDERED) == set(report._fields)
    for name, value in expected.items():
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, err_msg=name, **TOLERANCE),
            getattr(report, name),
            value,
        )


def accumulated(probs, labels, *weights) -> metrics.CalibrationReport:
    return Calibration.init(probs.shape[1]).update(probs, labels, *weights).compute()


def test_one_batch_is_what_the_one_shot_metrics_say():
    @jax.jit
    def functions(probs, labels):
        return {
            "top1": metrics.top_k(probs, labels, 1),
            "top5": metrics.top_k(probs, labels, 5),
            "nll": metrics.nll(probs, labels),
            "brier": metrics.brier(probs, labels),
            **metrics.brier_decomposition(probs, labels)._asdict(),
            "ece": metrics.ece(probs, labels),
            "mce": metrics.mce(probs, labels),
        }

    assert_reports(accumulated(P, Y), expected())
    for name, value in functions(P, Y).items():
        np.testing.assert_allclose(value, expected()[name], err_msg=name, **TOLERANCE)


def test_five_thousand_batches_of_one_are_the_same():
    @jax.jit
    def scan(probs, labels):
        step = lambda state, one: (state.update(one[0][None], one[1][None]), None)  # noqa: E731
        return jax.lax.scan(step, Calibration.init(CLASSES), (probs, labels))[0]

    assert_reports(scan(P, Y).compute(), expected())


def test_large_batches_merged_in_any_order_are_the_same():
    quarter = np.random.default_rng(0).integers(0, 4, N)
    first, second, third, fourth = (Calibration.init(CLASSES).update(P, Y, quarter == i) for i in range(4))
    for state in (
        first.merge(second).merge(third).merge(fourth),
        fourth.merge(second.merge(third.merge(first))),
    ):
        assert_reports(state.merge(Calibration.init(CLASSES)).compute(), expected())


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True)
@hypothesis.given(st.lists(st.integers(0, BATCH), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_random_batches_are_the_same(sizes, random):
    """Each padded to BATCH rows with what must not be looked at."""
    rest = N - sum(sizes)
    sizes = [*sizes, *[BATCH] * (rest // BATCH), rest % BATCH]
    random.shuffle(sizes)
    state, start = Calibration.init(CLASSES), 0
    for size in sizes:
        rows = slice(start, start := start + size)
        probs, labels = np.full((BATCH, CLASSES), np.nan, np.float32), np.full(BATCH, -7, np.int32)
        probs[:size], labels[:size] = P[rows], Y[rows]
        state = state.update(probs, labels, np.arange(BATCH) < size)
    assert_reports(state.compute(), expected())


def test_equal_samples_by_the_hundred_thousand_do_not_drift():
    confidence = np.full(600, 0.7310586)
    batch = binary(confidence), np.ones(600, np.int32)

    @jax.jit
    def repeat(state):
        return jax.lax.fori_loop(0, 500, lambda _, state: state.update(*batch), state)

    many, once = repeat(Calibration.init(2)).compute(), reference(*batch)
    assert float(many.samples) == 300_000
    for name in EXACT:
        np.testing.assert_allclose(getattr(many, name), once[name], err_msg=name, **TOLERANCE)


@pytest.mark.parametrize(("n", "classes", "bins"), [(600, 2, 15), (64, 1000, 15), (64, 10, 4)])
def test_few_and_many_classes_and_bins(n, classes, bins):
    probs, labels = classifier(n, classes)
    found = Calibration.init(classes, bins).update(probs, labels).compute()
    assert_reports(found, reference(probs, labels, bins))


def test_a_single_sample():
    for row in range(3):
        assert_reports(
            accumulated(P[:BATCH], Y[:BATCH], np.arange(BATCH) == row), reference(P[[row]], Y[[row]])
        )


@pytest.mark.parametrize("probs", [np.eye(CLASSES)[Y[:BATCH]], np.full((BATCH, CLASSES), 0.1)])
def test_certain_and_even_predictions(probs):
    probs, labels = probs.astype(np.float32), np.arange(BATCH) % 7
    report = accumulated(probs, labels)
    assert_reports(report, reference(probs, labels))
    np.testing.assert_allclose(report.aurc, metrics.risk_coverage(probs, labels).area, **TOLERANCE)


@pytest.mark.parametrize("mapping", ["pmap", "shard_map"])
def test_devices_merge_by_summing_their_leaves(mapping):
    def joined(probs, labels):
        return jax.lax.psum(Calibration.init(CLASSES).update(probs, labels), "data")

    if mapping == "pmap":
        split = P.reshape(8, -1, CLASSES), Y.reshape(8, -1)
        state = jax.tree.map(lambda x: x[3], jax.pmap(joined, axis_name="data")(*split))
    else:
        mesh, rows = Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")
        state = jax.jit(jax.shard_map(joined, mesh=mesh, in_specs=rows, out_specs=PartitionSpec()))(P, Y)
    assert_reports(jax.device_get(state).compute(), expected())


@pytest.mark.parametrize("row", [(np.nan, 3), (0.0, 99), (np.inf, -1), (-5.0, 2**31 - 1)])
def test_padding_may_hold_anything(row):
    mask = np.arange(BATCH) < 40
    probs, labels = P[:BATCH].copy(), Y[:BATCH].copy()
    probs[40:], labels[40:] = row
    for weights in (mask, mask.astype(np.float32), jnp.asarray(mask)):
        assert_reports(accumulated(probs, labels, weights), reference(P[:40], Y[:40]))


def test_a_batch_of_padding_alone_changes_nothing():
    nothing = np.full((BATCH, CLASSES), np.nan, np.float32)
    state = Calibration.init(CLASSES).update(P[:BATCH], Y[:BATCH])
    padded = state.update(nothing, np.full(BATCH, -1), np.zeros(BATCH, bool))
    chex.assert_trees_all_equal(padded, state)


def test_a_nan_that_is_not_padding_shows_inside_jit():
    broken = P[:BATCH].copy()
    broken[5] = np.nan
    state = jax.jit(Calibration.update)(Calibration.init(CLASSES), broken, Y[:BATCH])
    assert np.isnan(state.nll.value)


@functools.cache
def bootstrap():
    """1000 resamples of 2000 rows, each as how often it holds every row."""
    counts = np.random.default_rng(0).multinomial(2000, np.ones(2000) / 2000, size=1000)
    once = lambda count: accumulated(P[:2000], Y[:2000], count)  # noqa: E731
    return counts, jax.jit(jax.vmap(once))(counts)


def test_counts_are_a_bootstrap_resample():
    counts, reports = bootstrap()
    for resample in (0, 500, 999):
        rows = np.repeat(np.arange(2000), counts[resample])
        report = jax.tree.map(lambda x, i=resample: x[i], reports)
        assert_reports(report, reference(P[rows], Y[rows]))
        padded = np.append(rows, np.zeros(N - 2000, int))
        again = accumulated(P[padded], Y[padded], np.arange(N) < 2000)
        jax.tree.map(functools.partial(np.testing.assert_allclose, **TOLERANCE), report, again)


def test_the_bootstrap_has_the_spread_of_the_accuracy():
    top1, found = reference(P[:2000], Y[:2000])["top1"], bootstrap()[1].top1
    spread = np.sqrt(top1 * (1 - top1) / 2000)
    assert abs(np.mean(found) - top1) < 4 * spread / np.sqrt(1000)
    assert np.std(found) == pytest.approx(spread, rel=0.1)


def test_weights_need_not_be_whole():
    odd = np.arange(BATCH) % 2
    report = accumulated(P[:BATCH], Y[:BATCH], np.where(odd, 0.25, 0.5))
    twice = np.repeat(np.arange(BATCH), 2 - odd)
    assert float(report.samples) == 24.0
    for name in EXACT:
        value = reference(P[twice], Y[twice])[name]
        np.testing.assert_allclose(getattr(report, name), value, err_msg=name, **TOLERANCE)


def test_one_sample_a_cell_makes_the_ordered_metrics_exact():
    rng = np.random.default_rng(0)
    probs, labels = binary(rng.permutation(np.linspace(0.51, 0.99, 600))), rng.random(600) > 0.8
    labels = labels.astype(np.int32)
    curve = metrics.risk_coverage(probs, labels)
    report = accumulated(probs, labels)
    np.testing.assert_allclose(report.aurc, curve.area, **TOLERANCE)
    np.testing.assert_allclose(report.adaptive_ece, metrics.adaptive_ece(probs, labels), **TOLERANCE)
    np.testing.assert_allclose(report.risk_coverage.risk, curve.risk[5::6], **TOLERANCE)
    np.testing.assert_allclose(report.risk_coverage.coverage, curve.coverage[5::6], **TOLERANCE)
    for few in (
        1,
        2,
        16,
        593,
    ):  # as many as the bins of equal mass, fewer, and a number that they do not divide
        probs64, hits = probs[:few].astype(np.float64), labels[:few] == 0
        order = np.argsort(probs64[:, 0])
        gaps = np.array_split((hits - probs64[:, 0])[order], 15)
        found = accumulated(probs, labels, np.arange(600) < few)
        risk = np.cumsum(~hits[order][::-1]) / np.arange(1, few + 1)
        np.testing.assert_allclose(found.adaptive_ece, sum(abs(gap.sum()) for gap in gaps) / few, **TOLERANCE)
        np.testing.assert_allclose(found.aurc, risk.mean(), **TOLERANCE)


def test_ties_leave_the_risk_exact():
    probs, labels = binary(np.repeat([0.6, 0.7, 0.9], 200)), (np.arange(600) % 3 == 0).astype(np.int32)
    found = accumulated(probs, labels).aurc
    np.testing.assert_allclose(found, metrics.risk_coverage(probs, labels).area, **TOLERANCE)


@pytest.mark.parametrize("kind", ["confident", "narrow", "adversarial"])
def test_the_error_of_the_ordered_metrics_is_within_its_bound(kind):
    rng = np.random.default_rng(0)
    confidence = (
        np.sort(1 - 0.5 * rng.random(600) ** 8) if kind == "confident" else np.linspace(0.61, 0.612, 600)
    )
    probs, labels = binary(confidence), (rng.random(600) > confidence).astype(np.int32)
    cell = cells(probs)
    if kind == "adversarial":  # in each cell all errors at its lower end
        labels = (np.arange(600) - np.searchsorted(cell, cell) < np.bincount(cell)[cell] / 2).astype(np.int32)
    report = accumulated(probs, labels)
    errors = (
        abs(float(report.adaptive_ece - metrics.adaptive_ece(probs, labels))),
        abs(float(report.aurc - metrics.risk_coverage(probs, labels).area)),
    )
    for error, bound in zip(errors, bounds(cell, labels), strict=True):
        assert error < bound + 1e-6
    if kind == "confident":
        assert max(errors) < 2e-3
    if kind == "adversarial":
        assert min(errors) > 1e-2


def cells(probs) -> np.ndarray:
    """The cell of each row, of rows in the order of their confidence."""
    cell = np.asarray(calibration._cell_index(jnp.asarray(probs[:, 0]), 15, 274))
    assert np.all(np.diff(cell) >= 0)
    assert np.all((cell >= 0) & (cell < 15 * 274))
    return cell


def bounds(cell, wrong) -> tuple[float, float]:
    """The documented bounds on the error of adaptive_ece and of aurc, from the samples of each cell."""
    samples, errors = np.bincount(cell), np.bincount(cell, wrong)
    mixed = errors * (samples - errors) / np.maximum(samples, 1)
    cut = cell[[part[0] for part in np.array_split(np.arange(len(cell)), 15)][1:]]
    harmonic = np.append(0, np.cumsum(1 / np.arange(1, len(cell) + 1)))
    more = len(cell) - np.cumsum(samples)
    area = np.sum(mixed * (harmonic[more + samples] - harmonic[more]))
    return 2 / len(cell) * np.sum(mixed[cut] + samples[cut] / 8000), area / len(cell)


def test_no_cell_is_wider_than_promised():
    confidence = np.linspace(0.001, 1, 200_001, dtype=np.float32)
    cell = np.asarray(calibration._cell_index(jnp.asarray(confidence), 15, 274))
    lowest, highest = (np.full(15 * 274, start) for start in (2.0, -2.0))
    np.minimum.at(lowest, cell, confidence)
    np.maximum.at(highest, cell, confidence)
    assert np.max(highest - lowest) < 1 / 2000
    near_one = 1 - np.float32(2) ** -np.arange(11, 18)
    assert len(set(np.asarray(calibration._cell_index(jnp.asarray(near_one), 15, 274)))) == len(near_one)


def test_double_precision_stays():
    with jax.enable_x64(True):
        probs = P[:BATCH].astype(np.float64)
        probs /= probs.sum(axis=1, keepdims=True)
        state = Calibration.init(CLASSES).update(probs, Y[:BATCH])
        assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {np.dtype(np.float64)}
        report, exact = state.compute(), reference(probs, Y[:BATCH])
    for name in EXACT:
        np.testing.assert_allclose(getattr(report, name), exact[name], rtol=0, atol=1e-12)


def test_half_precision_is_summed_in_single_precision():
    half = jnp.asarray(P[:BATCH], jnp.bfloat16)
    state = Calibration.init(CLASSES).update(half, Y[:BATCH])
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {np.dtype(np.float32)}
    assert_reports(state.compute(), reference(np.asarray(half, np.float32), Y[:BATCH]))


def test_memory_does_not_grow_with_the_images():
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(Calibration.init(1000))) < 17e6
    state = Calibration.init(CLASSES)
    assert jax.tree.map(jnp.shape, state.update(P, Y)) == jax.tree.map(jnp.shape, state)


def test_what_does_not_fit_is_refused():
    state = Calibration.init(CLASSES)
    with pytest.raises(ValueError, match="probs must have 10 classes as in init, got 2"):
        state.update(np.array([[0.5, 0.5]]), np.array([0]))
    for other in (Calibration.init(9), Calibration.init(CLASSES, bins=10)):
        with pytest.raises(ValueError, match="same classes and bins can be merged"):
            state.merge(other)
    with pytest.raises(ValueError, match="no metrics of 0 samples"):
        state.compute()
    with pytest.raises(ValueError, match="classes must be an integer, 2 or more, got 1"):
        Calibration.init(1)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (np.ones(3, bool), r"weights must be \[64\], one per row, got \[3\]"),
        (-np.ones(BATCH), "weights must be finite and not negative, got -1"),
        (np.full(BATCH, np.nan), "weights must be finite and not negative, got nan"),
        (np.full(BATCH, np.inf), "weights must be finite and not negative, got inf"),
        (np.ones(BATCH) * 1j, "weights must be a mask or real numbers, got complex128"),
    ],
)
def test_wrong_weights_are_refused(weights, problem):
    with pytest.raises(ValueError, match=problem):
        accumulated(P[:BATCH], Y[:BATCH], weights)


def test_rows_that_count_are_checked():
    probs, labels, mask = P[:BATCH].copy(), Y[:BATCH].copy(), np.arange(BATCH) < 60
    probs[59], labels[59] = 0.2, 10
    with pytest.raises(ValueError, match=r"must sum to 1 within 0\.001, got a row with sum 2"):
        accumulated(probs, Y[:BATCH], mask)
    with pytest.raises(ValueError, match="labels must be 0 to 9, got 0 to 10"):
        accumulated(P[:BATCH], labels, mask)
