"""The pieces around a document that is an example by itself."""

import pytest
import tiny

from xlnet_jax.data.batches import frames
from xlnet_jax.data.tokenizer import XLNET

WHOLE = {"documents": "whole", "pairs": "none"}


@pytest.mark.parametrize(
    ("family", "data", "before", "behind"),
    [
        ("xlnet", {"objective": "plm"}, (), ("sep", "cls")),
        ("xlnet", {"objective": "plm", "factorization_order": "uniform"}, (), ()),
        ("xlnet", {"objective": "plm", "factorization_order": "left_within"}, (), ()),
        ("xlnet", {"objective": "clm"}, ("eod",), ()),
        ("xlnet", {"objective": "mlm"}, ("cls",), ("sep",)),
        ("xlnet", {"objective": "mdm"}, (), ()),
        ("gpt2", {}, ("eod",), ()),
        ("bert", {}, ("cls",), ("sep",)),
        ("roberta", {}, ("cls",), ("sep",)),
        ("bert", {"objective": "mdm"}, ("cls",), ("sep",)),
    ],
)
def test_each_objective_and_member_has_its_frame(family, data, before, behind):
    base = tiny.config() if family == "xlnet" else tiny.family(family)
    whole = base.changed(data=WHOLE | data)
    assert frames.frame(whole) == (before, behind)
    ids = [[getattr(XLNET, name) for name in names] for names in (before, behind)]
    assert frames.ids(whole, XLNET) == tuple(ids)
    assert frames.pieces_around(whole) == len(before) + len(behind)
    joined = whole.changed(data={"documents": "joined"})
    assert frames.ids(joined, XLNET) is None
    around = 2 * ("cls" in before)  # read with masks, a text is framed there too
    assert frames.pieces_around(joined) == around
