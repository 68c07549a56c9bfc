"""Run `byov plan` from a checkout: python -m experiments.plan --help."""

import sys

from byov_jax.cli.plan import main

if __name__ == "__main__":
    sys.exit(main())
