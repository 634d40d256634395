"""Tests that need the TPU compiler (extra `tpu`), and no TPU. Without it they fail: `make test-all` installs it."""

from xlnet_jax.aot.topology import prepare_environment

# Before libtpu is loaded.
prepare_environment()
