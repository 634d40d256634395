"""ModernBERT: BERT with rotary positions, windows, gated feed-forward layers, norms before the
branches, and almost no biases (Warner et al. 2024, arXiv 2412.13663).
"""

from xlnet_jax.members.bert import BERT, REQUIRED
from xlnet_jax.members.parts import Parts

PARTS = Parts(
    positions="rotary",
    segments="none",
    streams=1,
    embedding_norm=True,
    layer_biases=False,
    gated=True,
    first_norm=False,
    final_norm=True,
    output_dropout=False,
    scaled_init=True,
    head="dense",
)
USUAL = {
    "activation": "gelu_erf",
    "layer_norm_epsilon": 1e-5,
    "window": 128,
    "theta": 160_000.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "init_truncated": True,
}

MODERNBERT = BERT._replace(
    name="modernbert",
    parts=PARTS,
    segments=0,
    padding_row=-1,
    required=REQUIRED | {"norm": "pre"},
    usual_model=USUAL,
    usual_data={"pairs": "none", "spans": "random"},
    vocabulary="bytebpe",
    dropped_tasks=frozenset(),
    peer=None,
)
