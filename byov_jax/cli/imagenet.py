r"""Train on ImageNet, or any large set of images: on one machine, a GPU cluster or a TPU pod.

    byov imagenet --config=imagenet:vit_b16 --workdir=DIR
    byov imagenet --config=imagenet:vit_s16-byol-100-batch1024 --config.data.source=FOLDER --workdir=DIR

Start the same command on every host: under Slurm, Open MPI, Kubernetes and on TPU pods the processes find
each other. DIR must be a directory that all of them see. Each host decodes and crops its own share of every
batch; the state is sharded over all devices (--config.parallel.mode=sharded), or copied to each (pmap).

Any value of a config can be changed on the command line. The same command resumes an interrupted run, on any
number of devices. Beforehand:

    byov prepare --source=FOLDER --out=DATA           pack a million files into shards that read fast
    byov plan --config=... --topology=v5e:16x16       memory, time per step and data rate on a TPU slice

Afterwards:

    byov evaluate --run=DIR
    byov report DIR --out=report.html

A signal (Ctrl-C, SIGTERM, SIGUSR1) to any of the processes stops all of them, with the state saved.

Exit codes: 0 done, 1 the training could not continue or be saved, 2 wrong input (nothing was written), 130,
143 or 138 stopped by Ctrl-C, SIGTERM or SIGUSR1 (the state was saved).
"""

import sys

from byov_jax.cli import train


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return train.main(argv, name="imagenet", description=__doc__)


if __name__ == "__main__":
    sys.exit(main())
