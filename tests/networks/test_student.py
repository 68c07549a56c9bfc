"""The student and the classifier: names of parameters and the teacher's forward pass."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamNotFoundError

from byov_jax.networks import MLP, Classifier, Logits, Student, Taps, ViT

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 4, 4, 3)), jnp.float32)
KEY = jax.random.key(1, impl="rbg")  # compiles faster than threefry


class Mean(nn.Module):
    """The smallest encoder: a Dense on mean colours."""

    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.Dense(5)(x.mean((1, 2)))


@pytest.fixture(scope="module")
def student():
    model = Student(Mean(), MLP((7, 3)), MLP((6, 3)))
    return model, jax.jit(model.init)(KEY, X)


def without_predictor(variables):
    return {name: {k: v for k, v in tree.items() if k != "predictor"} for name, tree in variables.items()}


def test_top_level_names(student):
    _, variables = student
    assert set(variables) == {"params", "batch_stats"}
    assert set(variables["params"]) == {"encoder", "projector", "predictor"}
    assert set(variables["batch_stats"]) == {"projector", "predictor"}


def test_names_come_from_the_fields_even_if_the_modules_are_named():
    model = Student(Mean(name="a"), MLP((7, 3), name="b"), MLP((6, 3), name="c"))
    variables = jax.eval_shape(model.init, KEY, X)
    assert set(variables["params"]) == {"encoder", "projector", "predictor"}


def test_names_as_a_field_of_another_module(student):
    class Outer(nn.Module):
        student: nn.Module

        @nn.compact
        def __call__(self, x):
            return self.student(x)

    variables = jax.eval_shape(Outer(student[0]).init, KEY, X)
    assert set(variables["params"]) == {"student"}
    assert set(variables["params"]["student"]) == {"encoder", "projector", "predictor"}


def test_taps_chain_the_parts(student):
    model, variables = student
    taps = model.apply(variables, X)
    assert isinstance(taps, Taps)
    assert [x.shape for x in taps] == [(4, 5), (4, 3), (4, 3)]
    inputs = {"encoder": X, "projector": taps.encoder, "predictor": taps.projector}
    for name, x in inputs.items():
        part = {kind: tree[name] for kind, tree in variables.items() if name in tree}
        expected = getattr(model, name).apply(part, x)
        np.testing.assert_allclose(getattr(taps, name), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("train", [False, True])
def test_project_needs_no_predictor(student, train):
    model, variables = student
    taps, _ = model.apply(variables, X, train=train, mutable=["batch_stats"])
    (features, projection), updates = model.apply(
        without_predictor(variables), X, train=train, mutable=["batch_stats"], method="project"
    )
    np.testing.assert_array_equal(features, taps.encoder)
    np.testing.assert_array_equal(projection, taps.projector)
    assert set(updates["batch_stats"]) == {"projector"}


def test_the_call_needs_the_predictor(student):
    model, variables = student
    with pytest.raises(ScopeParamNotFoundError):
        model.apply(without_predictor(variables), X)


def test_train_reaches_every_batch_norm(student):
    model, variables = student
    _, updates = model.apply(variables, X, train=True, mutable=["batch_stats"])
    old, new = variables["batch_stats"], updates["batch_stats"]
    assert not any(jax.tree.leaves(jax.tree.map(np.allclose, old, new)))


def test_one_module_for_both_heads_is_an_error():
    head = MLP((7, 5))
    with pytest.raises(ValueError, match="would share parameters: build two"):
        Student(Mean(), head, head)


def test_equal_heads_have_separate_parameters():
    model = Student(Mean(), MLP((7, 5), norm="none"), MLP((7, 5), norm="none"))
    params = jax.jit(model.init)(KEY, X)["params"]
    assert not np.allclose(params["projector"]["dense_0"]["kernel"], params["predictor"]["dense_0"]["kernel"])


def test_drop_path_and_frozen_patch_reach_the_encoder():
    encoder = ViT(patch=2, width=8, depth=2, heads=1, drop_path=0.9, frozen_patch=True, scan=True)
    model = Student(encoder, MLP((3,)), MLP((3,)))
    variables = jax.eval_shape(model.init, KEY, X)
    assert set(variables["frozen"]) == {"encoder"}
    variables = jax.tree.map(lambda x: jnp.ones(x.shape), variables)

    def program(**kwargs):
        return str(jax.make_jaxpr(lambda v: model.apply(v, X, train=True, **kwargs))(variables))

    assert "random_bits" in program(rngs={"drop_path": jax.random.key(2)})
    assert "random_bits" not in program()


def test_classifier():
    model = Classifier(Mean(), classes=10)
    variables = jax.jit(model.init)(KEY, X)
    params = variables["params"]
    assert set(variables) == {"params"}
    assert set(params) == {"encoder", "head"}
    output = model.apply(variables, X)
    assert isinstance(output, Logits)
    np.testing.assert_allclose(output.encoder, Mean().apply({"params": params["encoder"]}, X), rtol=1e-6)
    expected = np.asarray(output.encoder) @ params["head"]["kernel"] + params["head"]["bias"][None]
    np.testing.assert_allclose(output.logits, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(params["head"]["kernel"]).max() <= 0.04
