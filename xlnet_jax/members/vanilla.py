"""The Vanilla Transformer of Al-Rfou et al. 2018: Transformer-XL with learned positions in place of
a memory.
"""

from xlnet_jax.members.transformer_xl import TRANSFORMER_XL

VANILLA = TRANSFORMER_XL._replace(
    name="vanilla",
    parts=TRANSFORMER_XL.parts._replace(positions="per_layer"),
    # In a memory a learned position would have two meanings. Without relative positions, layers
    # have no biases to share.
    required={"memory_len": 0, "biases_per_layer": True},
)
