"""Run `byov report` from a checkout: python -m experiments.report --help."""

import sys

from byov_jax.cli.report import main

if __name__ == "__main__":
    sys.exit(main())
