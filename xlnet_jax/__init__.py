"""XLNet pretraining in JAX: permutation language modelling, two-stream attention, segment recurrence."""

__version__ = "0.1.0"
