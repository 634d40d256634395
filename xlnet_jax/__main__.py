"""`python -m xlnet_jax` is the console script `xlnet-jax`."""

import sys

from xlnet_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
