"""Run `byov prepare` from a checkout: python -m experiments.prepare --help."""

import sys

from byov_jax.cli.prepare import main

if __name__ == "__main__":
    sys.exit(main())
