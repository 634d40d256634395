"""`python -m xlnet_jax` is the console script `xlnet-jax`."""

from xlnet_jax.cli import program

if __name__ == "__main__":
    program()
