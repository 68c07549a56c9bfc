r"""What a training will need, before there is a machine for it: does it fit, how long, can it be fed?

    python -m byov_jax.cli.plan --config=experiments/configs/imagenet.py:vit_b16 --topology=v5e:4x4
    python -m byov_jax.cli.plan --config=experiments/configs/imagenet.py:vit_b16 --topology=v5p:4x4x4 \
        --config.batch_size=8192 --compare=batch,remat,mesh --json=plan.json

Compiles the real training step for a TPU slice on a machine without a TPU (pip install 'byov-jax[plan]'), for
the config's method and, if it is Bayesian, for its deterministic counterpart. Without --topology the plan is
for the devices of this machine. Compiling a large network takes a minute or more.

Operations, bytes and exchanges are counted in the compiled program, loops as often as they run. Times are the
least possible: those of the busiest of matrix units, memory and links at the peaks that the chip's maker
publishes. Real steps take longer.

Exit codes: 0 it fits, 1 it does not fit (the smallest change that would is shown), 2 wrong input.
"""

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from byov_jax.cli import command, config_flags
from byov_jax.data import registry
from byov_jax.errors import RunError
from byov_jax.files import write_json
from byov_jax.planner import change as changes
from byov_jax.planner import hosts, machine, record, table
from byov_jax.planner import step as steps
from byov_jax.planner.machine import Machine
from byov_jax.planner.step import Step
from byov_jax.training import config as validate
from byov_jax.training import trainer as runs

COMPARISONS = ("batch", "remat", "mesh")


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    return command.run("plan", lambda: start(arguments), "interrupted")


def start(arguments: argparse.Namespace) -> int:
    """Everything between the arguments and the exit code."""
    if arguments.json and not arguments.json.parent.is_dir():
        raise RunError(f"--json={arguments.json}: {arguments.json.parent} is not a directory")
    try:
        config, where = prepare(arguments)
        compared = {kind: changes.variants(kind, config, where) for kind in arguments.compare}
    except ValueError as error:
        raise RunError(str(error)) from None
    others = [other for other in (changes.counterpart(config),) if other is not None]
    _show(table.describe(where))
    with progress(1 + len(others) + sum(map(len, compared.values()))) as compile_step:
        planned = [compile_step(each, where) for each in (*others, config)]
        _show(f"\n{table.methods(planned)}")
        result: dict[str, Any] = {"config": config, "chip": record.of_chip(where.chip)}
        result["steps"] = [record.of_step(step) for step in planned]
        if others:
            result["ratios"] = record.ratios(*planned)
        result |= _fed(config, planned) if planned[-1].fits else _remedied(config, where, compile_step)
        for kind, variants in compared.items():
            found = [compile_step(variant.made(config), variant.machine) for variant in variants]
            _show(f"\n{table.comparison(kind, variants, found)}")
            result.setdefault("compare", {})[kind] = [record.of_step(step) for step in found]
    if arguments.json:
        write_json(arguments.json, result)
    return 0 if planned[-1].fits else command.EXIT_FAILED


def prepare(arguments: argparse.Namespace) -> tuple[dict[str, Any], Machine]:
    """The complete config and the machine; whatever is wrong with them is a ValueError."""
    config = config_flags.load_config(arguments.config, arguments.changes)
    if arguments.topology:
        machine.keep_off_accelerators()
        where = machine.tpu(arguments.topology)
    else:
        where = machine.local(config["dtype"])
    devices = 1 if config["parallel"]["mode"] == "plain" else len(where.devices)
    if not config["data"]["size"]:
        data = registry.load(config["data"]["source"], resize=config["data"]["resize"])
        return runs.resolve_config(config, data, devices=devices), where
    validate.check(config, devices=devices)
    return config, where


def _fed(config: dict[str, Any], planned: list[Step]) -> dict[str, Any]:
    """Whether the hosts keep up, if they decode while training."""
    if config["data"]["loader"] != "stream" or planned[-1].roofline is None:
        return {}
    count = 1 if config["method"].startswith("supervised") else 2
    rate = hosts.decode_rate(config["data"]["image"][0], count)
    _show(f"\n{table.feeding(planned[-1], rate)}")
    needed = record.images_needed(planned[-1])
    return {"host": {"images_per_second_needed": needed, "images_per_second_of_a_core": rate}}


def _remedied(config: dict[str, Any], where: Machine, compile_step: changes.Compile) -> dict[str, Any]:
    """The smallest change with which it fits."""
    found = changes.remedy(config, where, compile_step)
    if found is None:
        _show("\nit does not fit, and nothing that was tried does")
        return {"remedy": None}
    change, step = found
    _show(f"\nit does not fit; with this it does: {change}\n\n{table.methods([step])}")
    return {"remedy": {"change": str(change), "step": record.of_step(step)}}


def _show(text: str) -> None:
    tqdm.write(text)  # above the bar, if there is one
    sys.stdout.flush()


@contextmanager
def progress(count: int) -> Iterator[changes.Compile]:
    """A compiler that shows what it is doing: a bar on a terminal, lines elsewhere."""
    terminal = sys.stderr.isatty()
    bar = tqdm(total=count, desc="compiling", disable=not terminal, dynamic_ncols=True, leave=False)
    over = threading.Event()

    def tick() -> None:
        while not over.wait(1.0):
            bar.refresh()

    done: dict[str, Step] = {}

    def compile_step(config: dict[str, Any], where: Machine) -> Step:
        key = f"{where.name} {config | {'encoder': {'remat': False} | config['encoder']}}"
        if key not in done:
            done[key] = shown(config, where)
        bar.update()
        return done[key]

    def shown(config: dict[str, Any], where: Machine) -> Step:
        words = [config["method"], f"for {where.name}", f"batch {config['batch_size']}"]
        words += [f"in {config['accumulate']} parts"] if config["accumulate"] > 1 else []
        words += ["recomputing activations"] if config["encoder"].get("remat") else []
        bar.set_postfix_str(", ".join(words))
        bar.total = max(bar.total, bar.n + 1)
        if not terminal:
            print(f"plan: compiling {', '.join(words)}:", end=" ", file=sys.stderr, flush=True)
        step = steps.compile_step(config, where)
        if not terminal:
            print(f"{step.compile_seconds:.0f} s", file=sys.stderr, flush=True)
        return step

    threading.Thread(target=tick, daemon=True).start()
    try:
        yield compile_step
    finally:
        over.set()
        bar.close()


def _arguments(argv: list[str]) -> argparse.Namespace:
    others, values = config_flags.split(argv)
    parser = command.parser("plan", __doc__)
    add = parser.add_argument
    add("--config", required=True, metavar="FILE[:VARIANT]", help="a Python file with get_config(variant)")
    add(
        "--topology",
        metavar="CHIP:SHAPE",
        help="a TPU slice such as v5e:4x4 (default: this machine's devices)",
    )
    add("--compare", default="", metavar="WHAT", help=f"tables over {', '.join(COMPARISONS)}, commas between")
    add("--json", type=Path, metavar="FILE", help="write all numbers here as well")
    arguments = parser.parse_args(others)
    arguments.compare = [word for word in arguments.compare.split(",") if word]
    for word in arguments.compare:
        if word not in COMPARISONS:
            parser.error(
                f"--compare={word}: expected some of {', '.join(COMPARISONS)}, with commas between them"
            )
    arguments.changes = values
    return arguments


if __name__ == "__main__":
    sys.exit(main())
