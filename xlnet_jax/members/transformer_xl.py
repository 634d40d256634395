"""Transformer-XL: XLNet from left to right, with one stream, a memory and no segments."""

from xlnet_jax.members.parts import Parts
from xlnet_jax.members.xlnet import XLNET

TRANSFORMER_XL = XLNET._replace(
    name="transformer_xl",
    objectives=("clm",),
    parts=Parts(segments="none", streams=1, targets="content"),
    other_parts={},
    xlnet_ids=False,
    peer=None,
)
