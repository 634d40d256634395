"""Every field of transformers' own configurations: it comes out again, or is refused by name, or
changes no function.

A field that a newer version of that library reads fails here until the `Peer` of the member says
which of them it is.
"""

import json

import pytest
import tiny
from convert.test_peers import config_of, tokenizer_of

from xlnet_jax.config import FinetuneConfig
from xlnet_jax.convert import fields, formats, peers
from xlnet_jax.data.tokenizer import XLNET
from xlnet_jax.errors import BadInput

transformers = pytest.importorskip("transformers")

CASES = [
    (family, task)
    for family, row in peers.PEERS.items()
    for task in ("none", *peers.EXPORTS)
    if task == "none"
    or peers.EXPORTS[task].name in row.heads
    and (family, task) != ("gpt2", "regression")
]
IDS = {"bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"}
"""They are those of the tokenizer, or are named."""


def written(family, task):
    """Our config.json among all fields of theirs, with their defaults."""
    keys = {"task": task, "labels": "a,b,c" if task.endswith("classification") else ""}
    if family == "xlnet":
        config, special = tiny.config(finetune=keys), XLNET
    else:
        config, special = (
            config_of(family, task).changed(finetune=keys),
            tokenizer_of(family).special,
        )
    ours = fields.config_json(config, special, {})
    kind = type(transformers.AutoConfig.for_model(family))
    theirs = json.loads(kind(**ours).to_json_string(use_diff=False))
    return special, theirs | ours


def other(name, value):
    if name == "id2label":
        return {str(i): f"x{i}" for i in range(len(value))}
    if isinstance(value, str):
        return "gelu" if value == "relu" else "relu"
    if isinstance(value, bool) or value is None:
        return not value
    return (
        [*value, "x"]
        if isinstance(value, list)
        else value | {"x": 1}
        if isinstance(value, dict)
        else value + (1 if isinstance(value, int) else 1 / 16)
    )


def unread(family, task):
    """The fields that no function of this class of theirs depends on."""
    row, export = peers.PEERS[family], peers.EXPORTS.get(task)
    name = export.name if export else ""
    found = {twin for twin, each in row.twins.items() if each.classes and name not in each.classes}
    found |= set() if export and export.labels is FinetuneConfig.label_list else {"id2label"}
    found |= {"untie_r"} if family == "xlnet" else set()  # transformers 5 has no other
    found |= {"start_n_top"} if name != "ForQuestionAnswering" else set()
    return found | peers.IGNORED | row.ignored | (set() if export else row.summary.keys())


def imported(folder, found, special):
    """What an export of the imported model would write."""
    (folder / "config.json").write_text(json.dumps(found))
    (folder / "tokenizer_config.json").write_text("{}")
    found = fields.read_config_json(str(folder))
    model = fields.read_model(str(folder), found)
    known = fields.read_lengths(found) | model | fields.read_task(str(folder), found)
    config, _ = formats.make_config(str(folder), known, (), fields.read_usual(model))
    kept, _ = fields.read_kept(found, config, special)
    return fields.config_json(config, special, kept)


@pytest.mark.parametrize(("family", "task"), CASES)
def test_every_field_is_carried_or_refused_or_changes_nothing(family, task, tmp_path):
    special, theirs = written(family, task)
    silent = []
    for name in (
        theirs.keys()
        - unread(family, task)
        - IDS
        - {"model_type", "architectures", "dtype", "label2id"}
    ):
        changed = theirs | {name: other(name, theirs[name])}
        try:
            again = imported(tmp_path, changed, special)
        except BadInput as error:
            named = name in str(error)
        else:
            named = again.get(name) == changed[name]
        silent += [] if named else [name]
    assert not silent
