r"""Plan a training: does it fit in memory, how long does it take at least, and can the hosts feed it?

    byov plan --config=imagenet:vit_b16 --topology=v5e:4x4
    byov plan --config=imagenet:vit_b16 --topology=v5p:4x4x4 \
        --config.batch_size=8192 --compare=batch,remat,mesh --json=plan.json

Compiles the real training step for a TPU slice on a machine without a TPU (pip install 'byov-jax[plan]'), for
the config's method and, if it is Bayesian, for its deterministic counterpart. Without --topology the plan is
for the devices of this machine. Compiling a large network takes a minute or more.

FLOPs, bytes and collectives are counted in the compiled program, loops once per trip. Times are lower
bounds: those of the busiest of matrix units, memory and links at the peaks that the chip's maker publishes.
Real steps take longer.

Exit codes: 0 it fits, 1 it does not fit (the smallest change that does is printed), 2 wrong input.
"""

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from byov_jax.cli import command, flags
from byov_jax.errors import RunError
from byov_jax.files import write_json
from byov_jax.planner import changes, hosts, machine, tables
from byov_jax.planner import step as steps
from byov_jax.planner.changes import Change, Compile
from byov_jax.planner.machine import Machine
from byov_jax.planner.step import Step
from byov_jax.training import build, trainer
from byov_jax.training.config import Config


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    return command.run("plan", lambda: start(arguments), "interrupted")


def start(arguments: argparse.Namespace) -> int:
    """Do everything between the arguments and the exit code."""
    if arguments.json and not arguments.json.parent.is_dir():
        raise RunError(f"--json={arguments.json}: {arguments.json.parent} is not a directory")
    try:
        config, target = prepare(arguments)
        compared = {kind: changes.comparison(kind, config, target) for kind in arguments.compare}
    except ValueError as error:
        raise RunError(str(error)) from None
    counterpart = changes.deterministic_counterpart(config)
    configs = [config] if counterpart is None else [counterpart, config]
    _print(tables.machine_summary(target))
    with cached_compiler(len(configs) + sum(map(len, compared.values()))) as compile_step:
        planned = [compile_step(each, target) for each in configs]
        _print(f"\n{tables.methods_table(planned)}")
        result: dict[str, Any] = {"config": config.to_dict(), "chip": tables.chip_to_json(target)}
        result["steps"] = [tables.to_json(step) for step in planned]
        if counterpart is not None:
            result["ratios"] = steps.ratios(*planned)
        fits = planned[-1].fits
        result |= _input_rate(config, planned[-1]) if fits else _remedy(config, target, compile_step)
        for kind, variants in compared.items():
            compiled = [compile_step(variant.apply(config), variant.machine) for variant in variants]
            _print(f"\n{tables.comparison_table(kind, variants, compiled)}")
            result.setdefault("compare", {})[kind] = [tables.to_json(step) for step in compiled]
    if arguments.json:
        write_json(arguments.json, result)
    return 0 if fits else command.EXIT_FAILED


def prepare(arguments: argparse.Namespace) -> tuple[Config, Machine]:
    """Return the resolved config and the machine; anything wrong with them is a ValueError."""
    config = flags.load_config(arguments.config, arguments.changes)
    if arguments.topology:
        machine.use_cpu()
        target = machine.tpu(arguments.topology)
    else:
        target = machine.local(config.dtype)
    devices = 1 if config.parallel.mode == "plain" else len(target.devices)
    if not config.data.size:
        return trainer.resolve_config(config, build.dataset(config), devices=devices), target
    config.check_data(devices=devices)
    return config, target


def _input_rate(config: Config, step: Step) -> dict[str, Any]:
    """Compare what the hosts must decode while training with what a core decodes."""
    if config.data.loader != "stream" or step.roofline is None:
        return {}
    rate = hosts.decode_rate(config.data.image[0], config.traits.views)
    _print(f"\n{tables.input_summary(step, rate)}")
    needed = step.images_per_second_per_host
    return {"host": {"images_per_second_needed": needed, "images_per_second_of_a_core": rate}}


def _remedy(config: Config, target: Machine, compile_step: Compile) -> dict[str, Any]:
    """Find the smallest change with which the step fits."""
    found = changes.smallest_that_fits(config, target, compile_step)
    if found is None:
        _print("\nit does not fit, nor with any of the changes that were tried")
        return {"remedy": None}
    change, step = found
    _print(f"\nit does not fit; with this change it does: {change}\n\n{tables.methods_table([step])}")
    return {"remedy": {"change": str(change), "step": tables.to_json(step)}}


def _print(text: str) -> None:
    tqdm.write(text)  # above the bar, if there is one
    sys.stdout.flush()


@contextmanager
def cached_compiler(count: int) -> Iterator[Compile]:
    """Yield a function that compiles each step once, with a bar on a terminal and lines elsewhere."""
    terminal = sys.stderr.isatty()
    bar = tqdm(total=count, desc="compiling", disable=not terminal, dynamic_ncols=True, leave=False)
    finished = threading.Event()
    cache: dict[tuple[str, Config], Step] = {}

    def refresh() -> None:
        while not finished.wait(1.0):
            bar.refresh()

    def compile_step(config: Config, target: Machine) -> Step:
        explicit = Change({"encoder.remat": bool(config.encoder.remat)}, target).apply(config)
        key = (target.name, explicit)
        if key not in cache:
            cache[key] = report(config, target)
        bar.update()
        return cache[key]

    def report(config: Config, target: Machine) -> Step:
        label = f"{config.method}, for {target.name}, batch {config.batch_size}"
        label += f", in {config.accumulate} parts" if config.accumulate > 1 else ""
        label += ", recomputing activations" if config.encoder.remat else ""
        bar.set_postfix_str(label)
        bar.total = max(bar.total, bar.n + 1)
        if not terminal:
            print(f"plan: compiling {label}:", end=" ", file=sys.stderr, flush=True)
        step = steps.compile_step(config, target)
        if not terminal:
            print(f"{step.compile_seconds:.0f} s", file=sys.stderr, flush=True)
        return step

    threading.Thread(target=refresh, daemon=True).start()
    try:
        yield compile_step
    finally:
        finished.set()
        bar.close()


def _arguments(argv: list[str]) -> argparse.Namespace:
    others, values = flags.split_config_flags(argv)
    parser = command.parser("plan", __doc__)
    choices = ", ".join(changes.COMPARISONS)
    add = parser.add_argument
    add("--config", required=True, metavar="NAME[:VARIANT]", help=flags.CONFIG_HELP)
    add("--topology", metavar="CHIP:SHAPE", help="a TPU slice such as v5e:4x4 (default: the local devices)")
    add("--compare", default="", metavar="WHAT", help=f"print tables over {choices}, separated by commas")
    add("--json", type=Path, metavar="FILE", help="also write all numbers to FILE")
    arguments = parser.parse_args(others)
    arguments.compare = [kind for kind in arguments.compare.split(",") if kind]
    for kind in arguments.compare:
        if kind not in changes.COMPARISONS:
            parser.error(f"--compare={kind}: expected some of {choices}, separated by commas")
    arguments.changes = values
    return arguments


if __name__ == "__main__":
    sys.exit(main())
