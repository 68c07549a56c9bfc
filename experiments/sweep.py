"""Run `byov sweep` from a checkout: python -m experiments.sweep --help."""

import sys

from byov_jax.cli.sweep import main

if __name__ == "__main__":
    sys.exit(main())
