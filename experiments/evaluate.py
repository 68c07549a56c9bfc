"""Run `byov evaluate` from a checkout: python -m experiments.evaluate --help."""

import sys

from byov_jax.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
