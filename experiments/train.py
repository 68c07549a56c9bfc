"""Run `byov train` from a checkout: python -m experiments.train --help."""

import sys

from byov_jax.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
