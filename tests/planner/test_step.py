"""The real training step: its FLOPs against a count by hand, its memory, and steps that do not fit."""

import jax
import pytest

from byov_jax.planner import cost, hlo, machine, step, tables
from byov_jax.planner.chips import Chip
from byov_jax.training import build
from byov_jax.training.config import Config

CHIP = Chip("imagined", flops=1e12, bandwidth=1e11, memory=2**40, link=1e10)
VIT = {
    "steps": 100,
    "batch_size": 8,
    "data": {"size": 1000, "image": (224, 224, 3), "classes": 10, "loader": "stream"},
    "views": {"name": "imagenet", "blur": 0.0, "jitter": 0.0, "grayscale": 0.0, "solarize": 0.0},
}


def imagined(count=1, **fields):
    return machine.Machine("imagined", CHIP._replace(**fields), jax.devices()[:count])


def config(method="byol", **sections):
    return Config.parse({**VIT, "method": method, **sections})


def by_hand(images, *, width, depth, patches, remat, classes, hidden=4096, output=256):
    """Return the FLOPs of a step of BYOL with a class token and patches of 16 x 16 x 3 pixels.

    Gradients cost twice the forward pass, except for the pixels, which need none. Recomputing a block stops
    before its last product, which no gradient needs. The probe's gradient ends at the features.
    """
    tokens = patches + 1
    down = 2 * tokens * 4 * width**2
    block = 2 * tokens * (3 + 1 + 4) * width**2 + down + 2 * 2 * tokens**2 * width
    embedding = 2 * patches * (16 * 16 * 3) * width
    encoder = embedding + depth * block
    projector = 2 * (width * hidden + hidden * output)
    predictor = 2 * (output * hidden + hidden * output)
    student = 3 * (encoder + projector + predictor) - embedding + (depth * (block - down) if remat else 0)
    teacher = encoder + projector
    return images * (2 * (student + teacher) + 2 * 2 * width * classes)


@pytest.mark.slow
def test_flops_of_vit_b16_agree_with_a_count_by_hand():
    encoder = {"name": "vit", "size": "B/16", "scan": True, "remat": True}
    runner = build.runner(config(encoder=encoder), devices=jax.devices()[:1])
    compiled = runner.step.lower(*runner.abstract_inputs()).compile()
    program = hlo.parse(compiled.as_text())
    found = cost.count(program, devices=1)
    assert found.flops == pytest.approx(
        by_hand(8, width=768, depth=12, patches=196, remat=True, classes=10), rel=0.01
    )
    assert found.unknown_loops == 0
    once = cost.count(program, devices=1, loops_once=True)
    xla = compiled.cost_analysis()["flops"]  # every body once, elementwise operations included
    assert once.flops < xla < 1.05 * once.flops < found.flops / 5


def test_flops_and_memory_are_sharded_over_devices():
    sections = {
        "encoder": {"name": "vit", "patch": 16, "width": 64, "depth": 3, "heads": 2, "scan": True},
        "projector": {"widths": (256, 256)},
        "predictor": {"widths": (256, 256)},
    }
    sizes = {"width": 64, "depth": 3, "patches": 196, "hidden": 256, "remat": False, "classes": 10}
    one, eight = (step.compile_step(config(**sections), imagined(count)) for count in (1, 8))
    assert one.cost.flops == pytest.approx(by_hand(8, **sizes), rel=0.01)
    assert eight.cost.flops == pytest.approx(by_hand(1, **sizes), rel=0.01)
    assert one.cost.collectives == {}
    assert sum(eight.cost.collectives.values()) > 0
    assert eight.state < one.state / 2
    assert eight.memory < one.memory / 2
    assert one.state == pytest.approx(4 * 4 * one.parameters, rel=0.1)  # weights, teacher, two moments
    assert one.state < one.memory <= one.allocated
    assert not one._replace(machine=imagined(memory=one.allocated - 1)).fits
    assert one._replace(machine=imagined(memory=one.allocated)).fits


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
            "required for HLO temporaries (18.50G) exceeds available HBM (15.75G). HLO module: jit_step.",
            18.5 * 2**30,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 1.25T of 15.48G hbm. Exceeded "
            "hbm capacity by 2.09G.",
            1.25 * 2**40,
        ),
        ("RESOURCE_EXHAUSTED: out of memory", 0),
    ],
)
def test_memory_in_the_error_of_a_compiler(message, size):
    assert step.memory_needed(message) == size


def test_a_step_whose_compilation_runs_out_of_memory_does_not_fit(monkeypatch):
    class Lowered:
        def lower(self, *arguments):
            return self

        def compile(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: (3.0M) exceeds available HBM (1.0M)")

    build_runner = step.build.runner

    def runner(*arguments, **settings):
        built = build_runner(*arguments, **settings)
        built.step = Lowered()
        return built

    monkeypatch.setattr(step.build, "runner", runner)
    small = {"name": "vit", "patch": 112, "width": 8, "depth": 1, "heads": 2}
    found = step.compile_step(config("byov", encoder=small), imagined())
    assert (found.fits, found.memory, found.cost, found.roofline, found.hours) == (
        False,
        3 * 2**20,
        None,
        None,
        None,
    )
    assert found.bayesian == found.parameters


def test_a_program_that_the_compiler_cannot_print_still_has_its_memory(monkeypatch):
    def fail(self):
        raise jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure")

    monkeypatch.setattr(jax.stages.Compiled, "as_text", fail)
    small = {"name": "vit", "patch": 112, "width": 8, "depth": 1, "heads": 2}
    found = step.compile_step(config("byov", encoder=small), imagined())
    assert found.fits
    assert found.memory > 0
    assert (found.cost, found.roofline, found.images_per_second, found.hours) == (None, None, None, None)
    assert "unknown: the compiler cannot print its program" in tables.methods_table([found])
