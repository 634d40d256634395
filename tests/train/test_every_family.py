"""BERT, RoBERTa, ALBERT and GPT-2 from text to a trained model: they learn, resume bit for bit,
score alike anywhere.

Nothing here is of one family: the loop, checkpoints and evaluations are those of XLNet, whose tests
are in the modules of each.
"""

import dataclasses
import fnmatch
import functools
import json
import shutil
import subprocess
import sys

import data_fixtures
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shared
import tiny
import traced

from xlnet_jax import config as configs
from xlnet_jax.checkpoint.store import Checkpoints
from xlnet_jax.commands import quickstart
from xlnet_jax.commands.evaluate import evaluate
from xlnet_jax.commands.train import train
from xlnet_jax.data.prepare.options import PrepareOptions
from xlnet_jax.data.prepare.pipeline import prepare
from xlnet_jax.distributed import mesh as meshes
from xlnet_jax.members import MEMBERS
from xlnet_jax.model.transformer import empty_memory
from xlnet_jax.train.recipe import make_recipe

FAMILIES = [name for name, member in MEMBERS.items() if member.bounded]
TRAINED = [
    pytest.param(name, marks=pytest.mark.slow if name in ("albert", "gpt2") else pytest.mark.prove)
    for name in (*FAMILIES, "modern")
]
MODERN = MEMBERS["modern"].usual(32)["model"] | {"memory_len": 24, "window": 9}
"""Of the tiny configuration of `modern`, for permutations of XLNet's examples."""


def write(config, folder):
    """A configuration as a file, for the command line."""
    head = "from ml_collections import ConfigDict\n\n\ndef get_config():\n"
    (folder / "config.py").write_text(
        f"{head}    return ConfigDict({dataclasses.asdict(config)})\n"
    )
    return folder / "config.py"


def member(name, **model):
    """The tiny configuration of a member, `xlnet` also masked."""
    if name in ("xlnet", "modern"):
        return tiny.config(model=model if name == "xlnet" else MODERN | model)
    if name == "masked":
        data = {"objective": "mlm", "reuse_len": 29, "bidirectional": False}
        return tiny.config(data=data, model={"memory_len": 0} | model)
    further = {"multi_token_prediction": 2} if name == "vanilla" else {}
    return tiny.family(name, model=model | {"layer_losses": name == "vanilla"}, data=further)


NORMAL, ZEROS, ONES, FOR_RESIDUALS = (0, 0.02), (0, 0), (1, 0), (0, 0.02 / (2 * 2) ** 0.5)
NORMS = {"*norm/scale": ONES, "*norm/bias": ZEROS}
CUT, CUT_FOR_RESIDUALS = ((0, 0.8796 * deviation) for _, deviation in (NORMAL, FOR_RESIDUALS))
"""Normal within two deviations, which leaves 0.88 of one."""
# The code of XLNet: one initialiser, normal, for all but dense biases and LayerNorm (modeling.py,
# xlnet.py).
OF_XLNET = NORMS | {
    "word_embedding": NORMAL,
    "layers/attention/[qkvpo]*": NORMAL,
    "layers/attention/*_bias": NORMAL,
    "layers/feed_forward/*/kernel": NORMAL,
    "layers/feed_forward/*er/bias": ZEROS,
}
OF_TWO_STREAMS = {
    "mask_embedding": NORMAL,
    "layers/attention/segment_embedding": NORMAL,
    "bias": ZEROS,
}
# The code of BERT: the same for every kernel and table, and biases of 0 everywhere (modeling.py).
OF_BERT = OF_XLNET | {"layers/attention/*_bias": ZEROS, "position_embedding": NORMAL}
OF_BERTS_HEAD = {
    "segment_embedding": NORMAL,
    "transform/kernel": NORMAL,
    "transform/bias": ZEROS,
    "bias": ZEROS,
}
OF_PAIRS = {
    "pooler/kernel": NORMAL,
    "pooler/bias": ZEROS,
    "sentence_head/kernel": NORMAL,
    "sentence_head/bias": ZEROS,
}
# The classes of transformers (`_init_weights`), as `peers/test_live_modernbert.py` compares.
OF_MODERN = {
    "*norm/scale": ONES,
    "word_embedding": CUT,
    "layers/attention/[qkv]*": CUT,
    "layers/attention/output": CUT_FOR_RESIDUALS,
    "layers/feed_forward/*/kernel": CUT,
    "layers/feed_forward/outer/kernel": CUT_FOR_RESIDUALS,
    "transform/kernel": CUT_FOR_RESIDUALS,
    "bias": ZEROS,
}
STARTS = {
    "xlnet": OF_XLNET | OF_TWO_STREAMS,
    "masked": OF_XLNET | OF_TWO_STREAMS,
    # The code of Transformer-XL: as XLNet, and 0.01 for projections.
    "transformer_xl": OF_XLNET | {"bias": ZEROS},
    # Al-Rfou et al. say nothing of it.
    "vanilla": {
        name: start for name, start in OF_XLNET.items() if name != "layers/attention/*_bias"
    }
    | {
        "layers/attention/position_embedding": NORMAL,
        "further": NORMAL,
        "layers": NORMAL,
        "bias": ZEROS,
    },
    "bert": OF_BERT | OF_BERTS_HEAD | OF_PAIRS,
    "roberta": OF_BERT | OF_BERTS_HEAD,
    "albert": OF_BERT
    | OF_BERTS_HEAD
    | OF_PAIRS
    | {"embedding_projection/kernel": NORMAL, "embedding_projection/bias": ZEROS},
    # Radford et al. 2019, section 2.3: weights of residual layers by 1 / sqrt(N) with N = 2 L of
    # them.
    "gpt2": OF_BERT
    | {"layers/attention/output": FOR_RESIDUALS, "layers/feed_forward/outer/kernel": FOR_RESIDUALS},
    "transformer": {name: start for name, start in OF_BERT.items() if name != "position_embedding"},
    "modernbert": OF_MODERN,
    "modern": OF_MODERN | {"mask_embedding": CUT},
}
"""Mean and deviation of the fresh parameters with two layers and model.init_std=0.02; the last
pattern that fits.
"""


@pytest.mark.parametrize("name", STARTS)
def test_every_parameter_starts_as_its_source_says(name):
    recipe = make_recipe(member(name, init_std=0.02))
    found = traced.drawn(recipe.init_params)
    expected = {
        path: [key for key in STARTS[name] if fnmatch.fnmatchcase(path, key)] for path in found
    }
    assert set(STARTS[name]) == {key for keys in expected.values() for key in keys}, (
        "a pattern fits nothing"
    )
    for path, keys in expected.items():
        assert keys and found[path] == pytest.approx(STARTS[name][keys[-1]], rel=0.03, abs=1e-3), (
            path
        )
    # The row of padding, as `padding_idx` of transformers' classes: config.json has its id.
    words_VD = jax.jit(lambda: nn.meta.unbox(recipe.init_params())["word_embedding"])()
    padding = {"bert": [0], "roberta": [1], "albert": [0]}.get(name, [])
    assert np.flatnonzero(~np.any(words_VD, axis=1)).tolist() == padding


def test_normal_is_cut_off_and_projections_are_small_where_asked():
    """Google's BERT draws within two deviations, which leaves 0.88 of one; projections are
    Transformer-XL's.
    """
    cut = traced.drawn(make_recipe(member("bert", init_std=0.02, init_truncated=True)).init_params)
    assert all(
        deviation == pytest.approx(0.01759, rel=0.02) for _, deviation in cut.values() if deviation
    )
    assert sum(deviation > 0 for _, deviation in cut.values()) == 12
    clusters = member(
        "transformer_xl", init_std=0.02, cutoffs="50,100", div_val=2, tie_projections="none"
    )
    found = traced.drawn(make_recipe(clusters).init_params)
    projections = [path for path in found if "projection" in path]
    assert len(projections) == 6 and len(found) == 26
    assert all(found[path] == pytest.approx((0, 0.01), rel=0.03, abs=1e-3) for path in projections)


DROPS = {
    "token_dropout": 0.5,
    "layers/attention/content": 0.4,
    "layers/attention/Dropout_0": 0.5,
    "layers/feed_forward/Dropout_0": 0.3,
    "layers/feed_forward/Dropout_1": 0.5,
}
"""Of embeddings, probabilities, what attention adds, the activations, what the feed-forward part
adds: everywhere.
"""
RELATIVE = DROPS | {"positions/Dropout_0": 0.5, "output_dropout": 0.5}
DROPPED = {
    "xlnet": RELATIVE | {"layers/attention/query": 0.4, "query_dropout": 0.5},
    "masked": RELATIVE,
    "transformer_xl": RELATIVE,
    "vanilla": DROPS | {"output_dropout": 0.5},
    "bert": DROPS,
    "roberta": DROPS,
    "albert": DROPS | {"Dropout_0": 0.1},  # of what the loss of pairs reads
    "gpt2": DROPS,
    "transformer": DROPS,
    "modernbert": DROPS,
    "modern": DROPS | {"layers/attention/query": 0.4, "query_dropout": 0.5},
}
RATES = {"dropout": 0.5, "attention_dropout": 0.4, "activation_dropout": 0.3}


def test_each_member_has_its_starts_and_its_dropouts():
    assert {*STARTS} == {*DROPPED} == {*MEMBERS, "masked"}


@pytest.mark.parametrize("name", DROPPED)
def test_every_dropout_is_on_in_training_and_off_elsewhere(name):
    """The fault: one that is not there, has the rate of another key, or stays on without a key."""
    for rates in (RATES, dict.fromkeys(RATES, 0.0)):
        config = member(name, **rates)
        losses, batch = make_recipe(config).model.row_losses, tiny.batch(config, rows=2)
        params, memory = tiny.random_params(config), empty_memory(config.model, 2)
        found = traced.dropped(losses, params, batch, memory, jax.random.key(0))
        assert found == {
            place: rate
            for place, rate in DROPPED[name].items()
            if rates is RATES or place == "Dropout_0"
        }
        assert not traced.dropped(losses, params, batch, memory)


@pytest.mark.parametrize("name", ["xlnet", "albert"])
def test_every_dropout_changes_the_losses_that_it_is_for(name):
    """Each alone; the fault: one whose result nobody reads. ALBERT's own is for the loss of pairs
    of sentences.
    """
    config, places = member(name, **RATES), list(DROPPED[name])
    batch, memory = tiny.batch(config), empty_memory(config.model, 8)
    model, params = make_recipe(config).model, tiny.random_params(config, 0.3)

    def losses(on_N):
        def drop(place, real):
            return lambda x, *args: jnp.where(on_N[places.index(place)], real(x, *args), x)

        with traced.dropping(drop):
            return model.row_losses(params, batch, memory, jax.random.key(0)).sums

    found = jax.jit(jax.vmap(losses))(np.eye(len(places) + 1, len(places), -1, bool))
    changed = {
        loss: {
            place
            for place, loss_B in zip(places, loss_NB[1:], strict=True)
            if (loss_B != loss_NB[0]).any()
        }
        for loss, (loss_NB, _) in found.items()
    }
    assert changed["tokens"] == set(places) - {"Dropout_0"}
    assert changed.get("sentences", set(places)) == set(places)


@pytest.fixture(scope="module")
def settings(tmp_path_factory, pytestconfig):
    """The tiny configuration of a family, on a corpus with a vocabulary of its kind."""
    folder = tmp_path_factory.mktemp("corpora")
    made = functools.cache(
        functools.partial(data_fixtures.make_corpus, tokenizer=None, vocab_size=300)
    )

    def of(family, **changes):
        kind = "wordpiece" if family in ("bert", "albert") else "bytebpe"
        size = made(folder / kind, vocabulary=kind)["tokenizer"]["vocab_size"]
        of_modern = {"window": 9, "global_every": 2} if family == "modernbert" else {}
        sections = {
            "model": {"vocab_size": size} | of_modern,
            "data": {"corpus": str(folder / kind)},
            "log": {"compilation_cache": str(pytestconfig.cache.mkdir("xla"))},
            **changes,
        }
        if family == "modern":
            return tiny.config(**sections | {"model": MODERN | sections["model"]})
        return tiny.family(family, **sections)

    return of


UPDATES = {"albert": "lamb", "gpt2": "muon", "transformer": "muon"}


@pytest.mark.parametrize("family", TRAINED)
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(family, settings, tmp_path):
    """Dropout, both losses, other optimizers under ZeRO-1, an average of the parameters, and what a
    kill leaves behind: lines of steps that no checkpoint has.
    """
    name = UPDATES.get(family, "adamw")
    optimizer, mesh = {"name": name, "average": 0.9}, {"zero1": name != "adamw"}
    config = settings(family, train={"steps": 8}, optimizer=optimizer, mesh=mesh)

    def run(name, stop=None):
        train(config, str(tmp_path / name), stop_at=stop)
        return shared.steps(tmp_path / name)

    whole = run("whole")
    run("killed", 6)
    shutil.rmtree(tmp_path / "killed" / "checkpoints" / "6")
    assert run("killed") == whole and len({line["loss"] for line in whole}) == 8
    one, other = (
        Checkpoints(str(tmp_path / name)).record(8)["checksums"] for name in ("whole", "killed")
    )
    assert one == other and len(one) > 40


@pytest.mark.parametrize("family", TRAINED)
def test_neither_training_nor_the_held_out_loss_depends_on_the_devices(
    family, settings, tmp_path, monkeypatch
):
    """The fault: a lookup in a table that is split, with which the compiler ended the process."""
    losses, scores, available = [], [], jax.devices()
    for number, mesh in enumerate(({"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2})):
        train(settings(family, train={"steps": 4}, mesh=mesh), str(tmp_path / str(number)))
        losses.append([line["loss"] for line in shared.steps(tmp_path / str(number))])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and len(set(losses[0])) == 4
    for count, words in ((1, ["data=1"]), (8, ["data=8"]), (8, ["data=2", "fsdp=2", "tensor=2"])):
        monkeypatch.setattr(meshes, "available_devices", lambda count=count: available[:count])
        found = evaluate(str(tmp_path / "0"), overrides=[f"--config.mesh.{word}" for word in words])
        scores.append([value for name, value in found.items() if name.startswith("heldout_loss")])
        assert found["targets"] > 100 and len(scores[-1]) == 1 + (family in ("bert", "albert"))
    assert scores[1:] == [pytest.approx(scores[0], rel=1e-6)] * 2


@pytest.mark.prove
@pytest.mark.parametrize(
    ("family", "name", "rate"),
    [
        ("xlnet", "adamw", 2e-3),
        ("xlnet", "lamb", 5e-3),
        ("xlnet", "muon", 8e-3),
        *((family, "adamw", 1e-3) for family in FAMILIES),
    ],
)
def test_every_family_learns_from_the_text_of_the_quick_start(family, name, rate, tmp_path):
    """2,500 steps each. With rates of the quick start a masked model stays where it only knows
    which words a text has, 0.5 nats under the unigram cross-entropy; in short texts it finds the
    neighbours of a piece after 1,500.
    """
    config = configs.load(str(tiny.ROOT / "configs" / "quickstart.py"))
    kind = {"xlnet": "sentencepiece", "roberta": "bytebpe", "gpt2": "bytebpe"}.get(
        family, "wordpiece"
    )
    prepare(
        [quickstart.speeches()],
        str(tmp_path / "corpus"),
        PrepareOptions(
            vocabulary=kind,
            vocab_size=2000,
            document="file",
            sentences="punctuation",
            heldout=quickstart.HELDOUT,
            workers=2,
            sample_bytes=quickstart.TOKENIZER_SAMPLE_BYTES,
        ),
    )
    if family != "xlnet":
        config = config.changed(**MEMBERS[family].usual(32)).changed(
            model={"init_std": 0.06, "d_embed": 64 if family == "albert" else 0},
            train={"batch_size": 64},
            optimizer={"warmup_steps": 200, "weight_decay": 0.0, "adam_b2": 0.98},
        )
    config = config.changed(
        train={"steps": 2500},
        checkpoint={"every": 500},
        data={"corpus": str(tmp_path / "corpus")},
        log={"tensorboard": False},
        optimizer={"name": name, "learning_rate": rate},
    )
    words = ["train", f"--config={write(config, tmp_path)}", f"--workdir={tmp_path}/run", "--json"]
    # As in production, whatever this process compiles like: minutes, not hours.
    environment = shared.environment() | {"XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-m", "xlnet_jax", *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["heldout_loss"] < found["unigram_cross_entropy"] - 0.5
