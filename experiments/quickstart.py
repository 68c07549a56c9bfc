"""Run `byov quickstart` from a checkout: python -m experiments.quickstart --help."""

import sys

from byov_jax.cli.quickstart import main

if __name__ == "__main__":
    sys.exit(main())
