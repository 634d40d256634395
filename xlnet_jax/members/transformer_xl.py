"""Transformer-XL: XLNet from left to right, with one stream, a memory and no segments."""

from xlnet_jax.members.xlnet import XLNET
from xlnet_jax.objectives import CLM

TRANSFORMER_XL = XLNET._replace(
    name="transformer_xl",
    objectives=("clm",),
    parts=XLNET.other_parts[CLM],
    other_parts={},
    xlnet_ids=False,
    peer=None,
)
