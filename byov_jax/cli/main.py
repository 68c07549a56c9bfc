"""The command `byov`: lists the commands, and runs one."""

import sys
from importlib import import_module

COMMANDS = {
    "quickstart": "BYOL, BYOV and supervised BBB on embedded images, measured, on one page",
    "train": "train a config in a run directory, or resume it",
    "imagenet": "train on ImageNet: one machine, a GPU cluster or a TPU pod",
    "evaluate": "measure a trained run: accuracy, calibration, shifts, pruning ...",
    "report": "draw runs on one self-contained HTML page",
    "sweep": "train and evaluate a grid of runs: prior x beta x where x seed",
    "plan": "memory and time of a training on a TPU slice, without the TPU",
    "prepare": "pack images into shards for fast training, or check a data set",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        return import_module(f"byov_jax.cli.{argv[0]}").main(argv[1:])
    rows = "\n".join(f"  {name:12} {meaning}" for name, meaning in COMMANDS.items())
    usage = f"usage: byov COMMAND [arguments]\n\n{rows}\n\n`byov COMMAND --help` explains a command."
    if argv and argv[0] in ("-h", "--help"):
        print(usage)
        return 0
    print(f"byov: {argv[0]!r} is no command\n\n{usage}" if argv else usage, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
