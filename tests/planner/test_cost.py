"""FLOPs and bytes of programs with a known cost, and XLA's own count where that is right."""

import jax
import jax.numpy as jnp
import pytest
from planner.programs import DEVICES, array, compiled_text, count

from byov_jax.planner import cost, hlo

pytestmark = pytest.mark.usefixtures("optimized")
M, K, N = 32, 48, 64


def test_a_matrix_product():
    found = count(lambda a, b: a @ b, array(M, K), array(K, N))
    assert found.flops == 2 * M * K * N
    assert found.bytes == 4 * (M * K + K * N + M * N)
    assert found.collectives == {}


def test_a_batched_product_contracts_two_axes():
    found = count(lambda a, b: jnp.einsum("zmkl,zkln->zmn", a, b), array(5, M, 6, 7), array(5, 6, 7, N))
    assert found.flops == 2 * 5 * M * 6 * 7 * N


def layers(w, x):
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]


@pytest.mark.parametrize("length", [1, 2, 12])
def test_a_scan_counts_once_per_trip(length):
    assert count(layers, array(length, N, N), array(M, N)).flops == length * 2 * M * N * N


def test_a_scan_reads_one_layer_at_a_time():
    """Bytes grow by the same for every layer; if each read all layers, they would grow with the square."""
    first, second, third = (count(layers, array(length, N, N), array(M, N)).bytes for length in (10, 20, 30))
    assert third - second == second - first
    assert 10 * 4 * N * N < second - first < 20 * 4 * N * N + 10 * 12 * 4 * M * N


def test_a_scan_writes_one_row_at_a_time():
    def rows(x):
        return jax.lax.scan(lambda x, _: (x * 1.5, x), x, None, length=100)[1]

    assert count(rows, array(1000)).bytes < 100 * 10 * 4 * 1000


def test_nested_scans_multiply():
    def nested(w, x):
        def outer(x, _):
            return layers(w, x), None

        return jax.lax.scan(outer, x, None, length=5)[0]

    assert count(nested, array(3, N, N), array(M, N)).flops == 5 * 3 * 2 * M * N * N


def test_counting_bodies_once_is_what_xla_does():
    found = count(layers, array(12, N, N), array(M, N), loops_once=True)
    compiled = jax.jit(layers).lower(array(12, N, N), array(M, N)).compile()
    assert found.flops == 2 * M * N * N
    assert compiled.cost_analysis()["flops"] == pytest.approx(found.flops, rel=0.05)


def test_a_loop_whose_length_depends_on_data_counts_once_and_is_reported():
    def halve(x):
        return jax.lax.while_loop(lambda x: x[0, 0] > 1.0, lambda x: x @ x, x)

    found = count(halve, array(N, N))
    assert (found.flops, found.unknown_loops) == (2 * N**3, 1)


def test_the_most_expensive_branch_counts():
    def choose(flag, x):
        return jax.lax.cond(flag, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert count(choose, array(dtype="bool"), array(N, N)).flops == 2 * 2 * N**3


def test_an_elementwise_chain_is_read_and_written_once():
    found = count(lambda x: jnp.tanh(x * 2.0 + 1.0) - x, array(1000))
    assert (found.flops, found.bytes) == (0, 2 * 4 * 1000)


@pytest.mark.parametrize(
    ("padding", "stride", "dilation"),
    [("SAME", 1, 1), ("VALID", 2, 1), ("SAME", 2, 1), ([(1, 0), (-1, 2)], 1, 2)],
)
def test_convolutions_count_only_products_with_input_values(padding, stride, dilation):
    """The sum of a convolution of ones with ones is the number of products."""

    def convolve(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride, stride),
            padding,
            lhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    x, w = (2, 9, 10, 3), (3, 3, 3, 4)
    found = cost.count(hlo.parse(compiled_text(convolve, array(*x), array(*w))), devices=1)
    assert found.flops == 2 * int(convolve(jnp.ones(x), jnp.ones(w)).sum())


def test_bytes_agree_with_xla_where_xla_is_right():
    """On one CPU device, without loops and asynchronous copies."""

    def network(x, a, b):
        return jnp.sum(jax.nn.gelu(x @ a) @ b, axis=0)

    arguments = array(256, 128), array(128, 512), array(512, 64)
    compiled = jax.jit(jax.grad(lambda *a: jnp.sum(network(*a)), (1, 2))).lower(*arguments).compile()
    found = cost.count(hlo.parse(compiled.as_text()), devices=1)
    xla = compiled.cost_analysis()
    assert found.bytes == pytest.approx(xla["bytes accessed"], rel=0.1)
    assert found.flops == pytest.approx(xla["flops"], rel=0.05)


def test_sharded_work_counts_for_one_device():
    found = count(
        lambda a, b: a @ b, array(DEVICES * M, K, spec=("data",)), array(K, N, spec=()), devices=DEVICES
    )
    assert found.flops == 2 * M * K * N
    assert found.collectives == {}
