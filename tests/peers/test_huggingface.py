"""An exported folder, loaded by Hugging Face `transformers`, is the same model and the same
tokenizer.

Needs torch and transformers, which nothing else does; without them this file is skipped.
"""

import os
import subprocess
import sys
from pydoc_data import topics

import data_fixtures
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from xlnet_jax.batch import Batch, Memory
from xlnet_jax.config import Config, DataConfig, ModelConfig
from xlnet_jax.convert import huggingface
from xlnet_jax.convert.formats import Trained
from xlnet_jax.data.tokenizer import SPECIAL_PIECES, Normalization, Tokenizer, train_tokenizer
from xlnet_jax.data.vocabulary import PLAIN
from xlnet_jax.model.transformer import XLNet
from xlnet_jax.train.loss import LanguageModel

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, B, T, M, P = 2000, 3, 24, 8, 5
TOLERANCE = 1e-5

MANY_SCRIPTS = [
    "Ångström's naïve café résumé, “quoted” and ``quoted'' … ½ of the ﬁne œuvre",
    "한국어 텍스트 문장입니다. 그리고 더",
    "日本語のテキストです。がぎぐげご",
    "नमस्ते दुनिया, यह एक परीक्षण है",
    "ภาษาไทยเป็นภาษาที่สวยงาม",
    "ΟΔΥΣΣΕΥΣ ΛΟΓΟΣ σοφός",
    "مُحَمَّد العَرَبِيَّة",
    "İstanbul  ÇİĞ\tdöner\u00a0x\u200by\u001cz",
]


def model_config(**changes) -> ModelConfig:
    sizes = dict(vocab_size=VOCAB, layers=3, d_model=32, heads=4, head_dim=8, d_ff=64, memory_len=M)
    return ModelConfig(**(sizes | dict(compute_dtype="float32") | changes))


def random_params(model: ModelConfig) -> dict:
    """Far from the initialisation, whose attention is so flat that a wrong mask would hardly
    show.
    """
    params = tiny.random_params(Config(model=model), 0.25)
    moved = {"word": lambda x: 4 * x, "scale": lambda x: 1 + x}

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        return next((change(leaf) for part, change in moved.items() if part in name), leaf)

    return jax.tree_util.tree_map_with_path(draw, params)


def permuted_ranks() -> tuple[np.ndarray, np.ndarray]:
    """Ranks as the objective draws them, and the targets: context -1, targets and CLS their place
    in the order.
    """
    generator = np.random.default_rng(1)
    rank, targets = np.full((B, T), -1, np.int32), np.zeros((B, P), np.int32)
    for row in range(B):
        targets[row] = np.sort(generator.choice(T - 1, P, replace=False))
        rank[row, [*targets[row], T - 1]] = generator.permutation(P + 1)
    return rank, targets


def batch_of(rank: np.ndarray, targets: np.ndarray | None = None) -> Batch:
    generator = np.random.default_rng(2)
    targets = np.zeros((B, 0), np.int32) if targets is None else targets
    segments = np.repeat(np.array([[0] * 12 + [1] * (T - 13) + [2]], np.int32), B, axis=0)
    return Batch(
        tokens=generator.integers(9, VOCAB, (B, T)).astype(np.int32),
        segments=segments,
        rank=rank,
        direction=np.ones(B, np.int32),
        continues=np.ones(B, bool),
        target_positions=targets,
        target_tokens=np.zeros_like(targets),
        target_weights=np.ones(targets.shape, np.float32),
        summary_position=np.full(B, T - 1, np.int32),
        label=np.zeros(B, np.int32),
        label_weight=np.zeros(B, np.float32),
    )


def memory_of(model: ModelConfig, valid: int) -> Memory:
    hidden = (
        np.random.default_rng(3).normal(size=(model.layers, B, M, model.d_model)).astype(np.float32)
    )
    return Memory(hidden * (valid > 0), np.full(B, valid, np.int32))


def two_stream_arguments(batch: Batch) -> dict:
    """Ranks and targets as that library's `perm_mask` and `target_mapping`."""
    given = batch.for_transformers()
    return {name: torch.tensor(given[name]) for name in ("perm_mask", "target_mapping")}


def inputs(batch: Batch, memory: Memory | None = None) -> dict:
    given = dict(
        input_ids=torch.tensor(batch.tokens).long(),
        token_type_ids=torch.tensor(batch.segments).long(),
    )
    if memory is not None:
        given["mems"] = [
            torch.tensor(hidden).transpose(0, 1) for hidden in np.asarray(memory.hidden_LBMD)
        ]
    return given


SCRIPTS = {
    "latin": "straße naïve Łódź garçon über señor coração žluťoučký kůň œuvre Ångström façade",
    "greek": "η γρήγορη αλεπού πηδά πάνω από τον σκύλο Οδυσσεύς λόγος θάλασσα ψυχή ΑΘΗΝΑ",
    "cyrillic": "быстрая лиса прыгает через ленивую собаку ёлка подъезд Київ їжак йод Москва",
    "arabic": "الثعلب السريع يقفز فوق الكلب الكسول مُحَمَّد كِتَابٌ العَرَبِيَّة شمس",
    "hebrew": "השועל המהיר קופץ מעל הכלב העצלן שָׁלוֹם עולם ספר בית",
    "devanagari": "तेज़ लोमड़ी आलसी कुत्ते के ऊपर कूदती है नमस्ते दुनिया यह एक परीक्षण है हिन्दी",
    "thai": "สุนัขจิ้งจอกสีน้ำตาล กระโดดข้าม สุนัขขี้เกียจ ภาษาไทย สวยงาม น้ำ",
    "hangul": "빠른 갈색 여우가 게으른 개를 뛰어넘는다 한국어 텍스트 문장입니다 서울",
    "japanese": "素早い茶色の狐は のろまな犬を 飛び越える 日本語 テキスト がぎぐげご プログラム 東京",  # noqa: E501
}


def lines_in_scripts(number: int) -> list[str]:
    """Lines of words of one script each, with numbers and punctuation between them."""
    generator, found = np.random.default_rng(6), []
    marks = ["{}", "{}", "{}", "{},", "({})", "“{}”", "{}.", "``{}''"]
    for index in range(number):
        words = list(SCRIPTS.values())[index % len(SCRIPTS)].split()
        chosen = generator.choice(words, generator.integers(3, 12)).tolist()
        chosen += [
            f"{n:,}" if n % 2 else str(n)
            for n in generator.integers(0, 40_000, generator.integers(0, 3)).tolist()
        ]
        generator.shuffle(chosen)
        found.append(" ".join(generator.choice(marks).format(word) for word in chosen))
    return found


@pytest.fixture(scope="module")
def lines() -> list[str]:
    prose = [line.strip() for line in "\n".join(topics.topics.values()).split("\n") if line.strip()]
    numbers = [
        f'In {year}, some {people} people -- {share}% of "all" -- left (of {people * 3:,}).'
        for year, people, share in np.random.default_rng(4)
        .integers((1000, 100, 1), (2900, 999, 99), (300, 3))
        .tolist()
    ]
    return prose[:4000] + numbers + MANY_SCRIPTS * 20 + lines_in_scripts(2500)


@pytest.fixture(scope="module")
def spiece(lines, tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("tokenizer") / "spiece.model")
    train_tokenizer([Normalization()(line) for line in lines], path, VOCAB, seed=0, threads=1)
    return path


def export(
    model: ModelConfig, spiece: str, folder, normalization=PLAIN, **options
) -> tuple[dict, str]:
    params = random_params(model)
    config = Config(model=model, data=DataConfig(segment_len=T))
    huggingface.write(
        Trained(config, Tokenizer(spiece, normalization), params), str(folder), **options
    )
    return params, str(folder)


def load(cls, folder: str):
    """Offline, and with every parameter of the file used and none invented."""
    loaded, report = cls.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    return loaded.eval(), report


def run(params: dict, model: ModelConfig, batch: Batch, memory: Memory):
    batch, memory = jax.tree.map(jnp.asarray, (batch, memory))
    return XLNet(model).apply({"params": params}, batch, memory)


def difference(ours, theirs) -> float:
    """The largest, as a share of the largest value: these vectors and logits reach several
    units.
    """
    ours, theirs = np.asarray(ours), theirs.detach().numpy()
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize(
    ("changes", "shard_bytes"),
    [
        ({}, 2**40),
        ({}, 50_000),
        (dict(biases_per_layer=False), 2**40),
        (dict(activation="gelu_erf"), 2**40),
        (dict(activation="relu"), 2**40),
        (dict(clamp_len=6), 2**40),
    ],
    ids=["default", "shards", "tied", "gelu_erf", "relu", "clamp"],
)
def test_one_stream_without_memory(changes, shard_bytes, spiece, tmp_path):
    """In shards the index and the names of the files are those the library expects."""
    model = model_config(**changes)
    params, folder = export(model, spiece, tmp_path / "model", shard_bytes=shard_bytes)
    files = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
    assert (len(files) > 2) == (shard_bytes == 50_000)
    batch = batch_of(np.zeros((B, T), np.int32))
    theirs, report = load(transformers.AutoModel, folder)
    assert set(report["unexpected_keys"]) == {"lm_loss.bias"}
    with torch.no_grad():
        out = theirs(**inputs(batch)).last_hidden_state
    assert difference(run(params, model, batch, memory_of(model, 0)).hidden_BTD, out) < TOLERANCE
    if not changes:  # the two forms of gelu can be told apart
        other = run(params, model_config(activation="gelu_erf"), batch, memory_of(model, 0))
        assert difference(other.hidden_BTD, out) > 3 * TOLERANCE


@pytest.mark.parametrize("remembered", [0, M])
def test_two_streams(remembered, spiece, tmp_path):
    model = model_config()
    params, folder = export(model, spiece, tmp_path / "model")
    batch, memory = batch_of(*permuted_ranks()), memory_of(model, remembered)
    ours = run(params, model, batch, memory)
    theirs, report = load(transformers.AutoModelForPreTraining, folder)
    assert not report["unexpected_keys"]
    assert theirs.lm_loss.weight is theirs.transformer.word_embedding.weight
    given = inputs(batch, memory if remembered else None) | two_stream_arguments(batch)
    with torch.no_grad():
        out = theirs(**given, output_hidden_states=True)
    *_, content, query = out.hidden_states
    found = dict(
        content=difference(ours.hidden_BTD, content),
        query=difference(ours.target_vectors_BPD, query),
        logits=difference(
            LanguageModel(XLNet(model)).logits(params, ours.target_vectors_BPD), out.logits
        ),
    )
    assert max(found.values()) < TOLERANCE, found


def differences(lines: list[str], ours: Tokenizer, folder: str) -> tuple[dict[str, list[str]], int]:
    """The lines that have other ids in the exported tokenizer, by the reason; there are two. And
    the number of lines that the rule of digit and comma changes.
    """
    found, changed = {"digit and comma": [], "equal scores": []}, 0
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(lines, add_special_tokens=False)[
        "input_ids"
    ]
    for line, a, b in zip(lines, data_fixtures.encode(lines, ours), theirs, strict=True):
        plain = ours.processor.encode(ours.normalization(line))
        changed += plain != a.tolist()
        if a.tolist() == b:
            continue
        if plain != a.tolist():  # the rule, which is only emulated, had something to do
            found["digit and comma"].append(line)
            continue
        # Two ways to cut a word whose scores are equal, up to the rounding of float32.
        found["equal scores"].append(line)
        ours_score, theirs_score = (sum(map(ours.processor.get_score, ids)) for ids in (plain, b))
        assert abs(ours_score - theirs_score) < 1e-3, line
    return found, changed


RULES = [
    Normalization(),
    Normalization(lower=True),
    Normalization(keep_accents=True, remove_space=False),
    Normalization(keep_accents=True, nfkc=True),
]


@pytest.mark.parametrize("rules", RULES, ids=["default", "lower", "keep_accents", "nfkc"])
def test_tokenizer_gives_the_same_ids(rules, lines, spiece, tmp_path):
    """Every difference is one of the two that docs/convert.md lists; there are few."""
    _, folder = export(model_config(), spiece, tmp_path / "model", rules)
    found, changed = differences(lines, Tokenizer(spiece, rules), folder)
    # Without the rule there, all that it changes here would differ.
    assert len(found["digit and comma"]) < 0.02 * len(lines) < changed
    assert len(found["equal scores"]) < 0.01 * len(lines)
    assert not set(sum(found.values(), [])) & set(MANY_SCRIPTS)


def test_special_tokens(spiece, tmp_path):
    _, folder = export(model_config(), spiece, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert set(tokenizer.all_special_tokens) == set(SPECIAL_PIECES)
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_PIECES)) == list(range(9))
    pair = tokenizer("One (1).", "Two.")
    first, second = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("One (1).", "Two.")
    )
    assert pair["input_ids"] == [*first, 4, *second, 4, 3]
    assert pair["token_type_ids"] == [0] * (len(first) + 1) + [1] * (len(second) + 1) + [2]
    padded = tokenizer(["One (1).", "One (1). Two."], padding=True)
    assert padded["input_ids"][0][0] == 5 and padded["attention_mask"][0][0] == 0
    text = "One (1), or two."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert tokenizer("a <mask>", add_special_tokens=False)["input_ids"][-1] == 6


CLASSES = [
    "XLNetForSequenceClassification",
    "XLNetForTokenClassification",
    "XLNetForMultipleChoice",
    "XLNetForQuestionAnsweringSimple",
    "XLNetForQuestionAnswering",
]
HEADS = (
    "sequence_summary.",
    "logits_proj.",
    "classifier.",
    "qa_outputs.",
    "start_logits.",
    "end_logits.",
    "answer_class.",
)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_of_a_task_loads_it(name, loaded_folder):
    """Only the head of a task is new, and only the head of pretraining is left over."""
    _, report = getattr(transformers, name).from_pretrained(loaded_folder, output_loading_info=True)
    assert (
        all(key.startswith(HEADS) for key in report["missing_keys"])
        and not report["mismatched_keys"]
    )
    assert set(report["unexpected_keys"]) == {"lm_loss.bias"}


@pytest.fixture(scope="module")
def loaded_folder(spiece, tmp_path_factory) -> str:
    return export(model_config(), spiece, tmp_path_factory.mktemp("all") / "model")[1]


def test_a_pipeline_finds_model_and_tokenizer(loaded_folder):
    assert transformers.pipeline("feature-extraction", model=loaded_folder)("One (1), or two.")


def test_loads_without_protobuf_and_sentencepiece(spiece, tmp_path):
    """Neither is a dependency of that library."""
    _, folder = export(model_config(), spiece, tmp_path / "model")
    script = (
        "import sys\n"
        "sys.modules['google.protobuf'] = sys.modules['sentencepiece'] = None\n"
        "import transformers\n"
        f"assert len(transformers.AutoTokenizer.from_pretrained({folder!r})) == {VOCAB}\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
