"""`configure`: the file it writes is accepted by `train`, whatever the corpus, and is never written
over another.
"""

import json
import logging
import os
import re

import data_fixtures
import jax
import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.cli import main
from xlnet_jax.commands import configure as configuring
from xlnet_jax.commands.configure import MOST_EPOCHS, Size, configure
from xlnet_jax.data.batches.mixture import open_mixture
from xlnet_jax.data.corpus import manifest as manifests
from xlnet_jax.data.vocabulary import unexportable
from xlnet_jax.errors import BadInput
from xlnet_jax.members import MEMBERS
from xlnet_jax.model.flops import step_flops
from xlnet_jax.train.evaluation import open_heldout


def dry_run(path, workdir):
    return main(["train", f"--config={path}", f"--workdir={workdir}", "--dry_run", "--json"])


@pytest.fixture
def speed(monkeypatch):
    """Sets the FLOPs per second of this machine, which are not measured then."""

    def put(value):
        monkeypatch.setattr(configuring, "measure_speed", lambda config, mixture: value)

    put(1e11)
    return put


def of_length(tokens, **sections):
    """A mixture of which nothing is read: so it may be as long as we say."""
    base = tiny.config(data={"corpus": data_fixtures.corpus_path()}, **sections)
    mixture = open_mixture(base)
    mixture.corpora[0].tokens = tokens
    return mixture, configuring._fitting_sizes(base, mixture)


def test_train_accepts_the_file_with_the_probe_of_one_size(tmp_path, capsys, monkeypatch):
    # One small size, so one cheap compilation, and few steps.
    monkeypatch.setattr(configuring, "SIZES", (Size(1, 32, 32, 16, 1, 1e-3, 0.1),))
    monkeypatch.setattr(configuring, "_PROBE_SECONDS", 0.0)
    corpus, path = data_fixtures.corpus_path(), str(tmp_path / "small.py")
    assert main(["configure", corpus, "--minutes=30", f"--output={path}", "--json"]) == 0
    captured = capsys.readouterr()
    result, config = json.loads(captured.out), configs.load(path)
    assert "of 30 minutes 27 min 19 s are for steps, 1 min 15 s for the start" in captured.err
    assert result["tokens_per_second"] > 0 and result["minutes"] > 0
    assert (result["steps"], result["batch_size"]) == (config.train.steps, config.train.batch_size)
    assert config.model.vocab_size == data_fixtures.VOCAB_SIZE and config.data.corpus == corpus
    assert config.train.batch_size % jax.device_count() == 0
    # Nothing is left to chance: held-out losses, saves, and a rate that rises and falls.
    assert 0 < config.evaluation.every <= config.train.steps and config.evaluation.blocks
    assert 0 < config.checkpoint.every <= config.train.steps and result["epochs"] <= MOST_EPOCHS
    assert 0 < config.optimizer.warmup_steps < config.train.steps
    assert dry_run(path, tmp_path / "run") == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == result["parameters"]
    docstring = " ".join((tmp_path / "small.py").read_text().split('"""')[1].split())
    rows = config.train.batch_size
    assert result["new_tokens"] == result["steps"] * rows * config.data.reuse_len
    for text in (
        f"(measured here): all {config.data.segment_len} x {rows} positions of a step, of which",
        f"read {result['new_tokens']:,} new tokens, {result['epochs']:.2f} times the text",
        result["command"],
        "Hardware: 8 x cpu",
    ):
        assert text in docstring
    assert path in result["command"]
    before = os.stat(path)
    assert main(["configure", corpus, f"--output={path}"]) == 2
    assert "exists already" in capsys.readouterr().err and os.stat(path) == before


def test_a_corpus_of_any_length_gets_limits_that_hold_or_one_line(tmp_path, speed):
    outcomes = set()
    for documents in (2, 5, 40):
        text = data_fixtures.write(
            tmp_path, **{f"text{documents}": data_fixtures.synthetic_text(7, documents)}
        )
        corpus = str(tmp_path / f'a "corpus" of {documents}  \\ words')
        data_fixtures.make_corpus(corpus, text, heldout=0.3)
        path = str(tmp_path / f"{documents}.py")
        try:
            result = configure(corpus, path, 1)
        except BadInput as error:
            assert "tokens" in str(error) and "\n" not in str(error) and not os.path.exists(path)
            outcomes.add("refused")
            continue
        config = configs.load(path)
        assert config.data.corpus == corpus and result["epochs"] <= MOST_EPOCHS
        assert dry_run(path, tmp_path / "run") == 0
        outcomes.add((config.data.segment_len, config.data.windows_per_block))
    assert outcomes == {"refused", (128, 4)}


def test_a_model_of_masked_diffusion_is_configured(tmp_path, speed, capsys):
    """As of every family that can have this objective, see below."""
    path = str(tmp_path / "small.py")
    words = ["configure", data_fixtures.corpus_path(), f"--output={path}", "--objective=mdm"]
    assert main([*words, "--family=gpt2"]) == 2
    assert "mdm" in capsys.readouterr().err
    assert main(words) == 0, capsys.readouterr().err
    config = configs.load(path)
    assert (config.data.objective, config.model.architecture) == ("mdm", "xlnet")
    assert dry_run(path, tmp_path / "run") == 0


def test_more_time_and_a_faster_machine_give_a_larger_model_and_no_more_epochs_than_help(speed):
    mixture, fitting = of_length(10**9)
    layers = []
    for minutes, steps in ((1, 1), (60, 100), (60 * 24, 1000), (60 * 24, 100_000)):
        speed(steps * step_flops(fitting[0]))
        config, found = configuring.choose_size(fitting, mixture, 60.0 * minutes)
        config = configuring.with_schedule(config, mixture, 60.0 * minutes, found)
        configs.check(config)
        layers.append(config.model.layers)
        fresh = config.train.steps * config.train.batch_size * config.data.reuse_len
        assert fresh / 10**9 <= MOST_EPOCHS * 1.1
        assert config.train.steps <= 60 * minutes * found / step_flops(config)
    assert layers == sorted(layers) and layers[0] == fitting[0].model.layers < layers[-1]


def test_a_corpus_without_held_out_documents_is_configured_without_evaluations(
    tmp_path, caplog, speed
):
    corpus = str(tmp_path / "corpus")
    data_fixtures.make_corpus(corpus, heldout=0.0)
    caplog.set_level(logging.INFO, "xlnet_jax")
    configure(corpus, str(tmp_path / "config.py"), 5)
    assert configs.load(str(tmp_path / "config.py")).evaluation.every == 0
    assert sum("no held-out loss" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(("steps", "expected"), [(3, 1), (280, 2), (5000, 4)])
def test_evaluations_take_what_training_leaves(steps, expected):
    """Catches four evaluations in two minutes, which took longer than the rest of the plan
    knows.
    """
    mixture, fitting = of_length(10**9, evaluation={"final": True})
    config = configuring.with_schedule(
        fitting[0], mixture, 4000.0, steps * step_flops(fitting[0]) / 3700
    )
    steps, every, W = config.train.steps, config.evaluation.every, config.data.windows_per_block
    times, batches = -(-steps // every), config.evaluation.blocks / config.train.batch_size
    # A window is scored twice, and forward is a third of a step.
    assert times * batches * W * 2 / 3 <= 0.05 * steps or (times, batches) == (1, 1)
    assert times == expected and batches >= 1


def test_a_plan_that_cannot_beat_word_frequencies_says_so(tmp_path, caplog, speed):
    speed(1e7)
    result = configure(data_fixtures.corpus_path(), str(tmp_path / "short.py"), 1)
    reads = f"reads only {result['new_tokens']:,} tokens in {result['steps']} steps?, "
    (enough,) = re.findall(rf"{reads}.* unigram .*; give --minutes=(\d+)", caplog.text)
    caplog.clear()
    result = configure(data_fixtures.corpus_path(), str(tmp_path / "long.py"), int(enough))
    assert 200 <= result["steps"] < 220 and "unigram" not in caplog.text
    assert re.search(r": about 20 tokens per parameter are usual; prepare more text", caplog.text)


@pytest.mark.parametrize(
    ("share", "documents", "advice"),
    [
        (0.01, 44, "such as --heldout=0.04"),
        (0.05, 44, "such as --heldout=0.1"),
        (0.2, 44, "; prepare more text"),
        (0.05, 1, ", because no document is split (--document=blank_line)"),
    ],
)
def test_the_share_that_is_named_is_larger_than_the_one_that_was_too_small(
    share, documents, advice
):
    """The fault: 4,996 of 279,146 tokens with a share of 0.05, and 0.04 as the remedy."""
    counts = {
        "heldout": {"tokens": 4_996, "documents": 0},
        "train": {"tokens": 274_150, "documents": documents},
    }
    said = manifests.little_heldout({"splits": counts, "options": {"heldout": share}})
    assert said and said.endswith(advice)


@pytest.mark.parametrize(("share", "told"), [(0.1, True), (0.6, False)])
def test_few_held_out_tokens_are_named_with_the_option(tmp_path, caplog, share, told, monkeypatch):
    text = data_fixtures.write(tmp_path, text=data_fixtures.synthetic_text(7, 40))
    monkeypatch.setattr(manifests, "FEWEST_HELDOUT", 2000)
    corpus = str(tmp_path / "corpus")
    data_fixtures.make_corpus(corpus, text, heldout=share)
    config = tiny.config(data={"corpus": corpus}, evaluation={"final": True})
    mixture = open_mixture(config)
    open_heldout(config, mixture)
    splits = mixture.corpora[0].manifest["splits"]
    heldout, train = (splits[name]["tokens"] for name in ("heldout", "train"))
    line = f"the held-out split has {heldout:,} of {heldout + train:,} tokens"
    assert caplog.text.count(line) == caplog.text.count("such as --heldout=0.2") == 2 * told


@pytest.mark.usefixtures("speed")
def test_a_vocabulary_whose_models_cannot_be_exported_is_told(tmp_path, capsys):
    output = str(tmp_path / "config.py")
    said = "its padding is piece 5, and roberta needs piece 1"
    words = ["configure", data_fixtures.corpus_path(), f"--output={output}", "--minutes=1"]
    assert main([*words, "--family=roberta"]) == 0
    assert said in capsys.readouterr().err
    assert dry_run(output, tmp_path / "run") == 0
    assert said in capsys.readouterr().err


def test_prepare_says_which_models_its_vocabulary_suits(tmp_path, capsys):
    data_fixtures.write(tmp_path, a="Bado kilu menora, kilu.\n" * 20)
    tokenizer = f"--tokenizer={data_fixtures.tokenizer_path()}"
    words = ["prepare", f"--input={tmp_path}", f"--output={tmp_path}/c", "--heldout=0", tokenizer]
    assert main([*words, "--workers=1"]) == 0
    said = "models of bert, roberta, albert train with this vocabulary, but cannot be"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("speed")
@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "gpt2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("roberta", "albert", "transformer_xl", "modernbert", "modern")
        ),
    ],
)
def test_the_family_of_prepare_is_that_of_configure_and_train_accepts_its_file(
    tmp_path, capsys, family
):
    (text,) = data_fixtures.write(tmp_path, text=data_fixtures.synthetic_text(7, 200))
    words = ["prepare", f"--input={text}", f"--output={tmp_path}/c", f"--family={family}"]
    assert main([*words, "--vocab_size=300", "--workers=1"]) == 0
    made = manifests.read_manifest(f"{tmp_path}/c")
    vocabularies = dict.fromkeys(("bert", "albert"), "wordpiece")
    vocabularies |= dict.fromkeys(("transformer_xl", "modern"))
    assert made["options"].get("vocabulary") == vocabularies.get(family, "bytebpe")
    result = configure(f"{tmp_path}/c", str(tmp_path / "config.py"), 1.0)
    config = configs.load(result["output"])
    assert config.model.architecture == family
    assert config.data.objective == MEMBERS[family].objectives[0]
    assert config.data.sentence_loss == (family in ("bert", "albert"))
    bounded = config.model.member.bounded
    assert config.model.max_positions == config.data.segment_len or not bounded
    assert unexportable(open_mixture(config).tokenizer, family) is None
    err = capsys.readouterr().err
    assert f"models of {family} train" not in err
    assert "cannot be exported to Hugging Face: tokenizer" not in err
    assert dry_run(result["output"], tmp_path / "run") == 0
    if "mdm" in MEMBERS[family].objectives:
        configure(f"{tmp_path}/c", str(tmp_path / "mdm.py"), 1.0, objective="mdm")
        config = configs.load(str(tmp_path / "mdm.py"))
        assert config.data.objective == "mdm" and not config.data.sentence_loss
        assert dry_run(tmp_path / "mdm.py", tmp_path / "run") == 0
