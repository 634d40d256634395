"""The Transformer of 2017 as a left-to-right language model: BERT with sinusoids, without segments
and norm at the input, and with a bare head.
"""

from xlnet_jax.members.bert import BERT

TRANSFORMER = BERT._replace(
    name="transformer",
    objectives=("clm",),
    parts=BERT.parts._replace(
        positions="sinusoids", segments="none", embedding_norm=False, head="bare"
    ),
    cls="none",
    separators=0,
    segments=0,
    padding_row=-1,
    required=BERT.required | {"scale_embedding": True},
    usual_model={"activation": "relu", "layer_norm_epsilon": 1e-5},
    vocabulary="sentencepiece",
    dropped_tasks=frozenset(),
    peer=None,
)
