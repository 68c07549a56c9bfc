"""Run `byov imagenet` from a checkout: python -m experiments.imagenet --help."""

import sys

from byov_jax.cli.imagenet import main

if __name__ == "__main__":
    sys.exit(main())
