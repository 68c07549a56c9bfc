r"""Train on ImageNet, or any large set of images: on one machine, a GPU cluster or a TPU pod.

    python -m byov_jax.cli.imagenet --config=experiments/configs/imagenet.py:vit_b16 --workdir=DIR
    python -m byov_jax.cli.imagenet --config=experiments/configs/imagenet.py:vit_s16-byol-100-batch1024 \
        --config.data.source=FOLDER --workdir=DIR

Start the same command on every host: under Slurm, Open MPI, Kubernetes and on TPU pods the processes find
each other. DIR must be a directory that all of them see. Each host decodes and crops its own share of every
batch; the state is divided among all devices (--config.parallel.mode=sharded), or copied to each (pmap).

Any value of a config can be changed on the command line. The same command goes on where an interrupted run
stopped, on any number of devices. Beforehand:

    python -m byov_jax.cli.prepare --source=FOLDER --out=DATA           faster to read than a million files
    python -m byov_jax.cli.plan --config=... --topology=v5e:16x16       does it fit, how long will it take

Afterwards:

    python -m byov_jax.cli.evaluate --run=DIR
    python -m byov_jax.cli.report DIR --out=report.html

A signal (Ctrl-C, SIGTERM, SIGUSR1) to any of the processes stops all of them, with the state saved.

Exit codes: 0 done, 1 it could not go on or could not be saved, 2 wrong input (nothing was written), 130, 143
or 138 stopped by Ctrl-C, SIGTERM or SIGUSR1 (the state was saved).
"""

import sys

from byov_jax.cli import train


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return train.main(argv, name="imagenet", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
