"""The layers of ModernBERT under the objectives of XLNet: two streams, windows of a text, and a
memory.
"""

from xlnet_jax.members.bert import REQUIRED
from xlnet_jax.members.modernbert import PARTS, USUAL
from xlnet_jax.members.xlnet import XLNET
from xlnet_jax.objectives import CLM

_ONE_VALUE = {key: value for key, value in REQUIRED.items() if key != "memory_len"}

MODERN = XLNET._replace(
    name="modern",
    parts=PARTS._replace(streams=2),
    other_parts={CLM: PARTS},
    required=_ONE_VALUE | {"norm": "pre"},
    usual_model=USUAL,
    xlnet_ids=False,
    peer=None,
)
