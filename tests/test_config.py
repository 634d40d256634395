"""Configuration: files, overrides, suggestions, cross-field checks, resume rules."""

import re
import runpy

import pytest
import tiny

from xlnet_jax import config as configs
from xlnet_jax.config import Config
from xlnet_jax.config.loading import NAMES
from xlnet_jax.errors import BadInput

CONFIGS = tiny.ROOT / "configs"
QUICKSTART = str(CONFIGS / "quickstart.py")


@pytest.mark.parametrize("path", sorted({*CONFIGS.glob("**/*.py")} - {*CONFIGS.glob("finetune/*")}))
def test_every_config_file_loads_and_says_how_to_run_it(path):
    assert isinstance(configs.load(str(path)), Config)
    docstring = path.read_text(encoding="utf-8").split('"""')[1]
    assert any(
        command in docstring for command in ("xlnet-jax train", "xlnet-jax finetune", "quickstart")
    )
    assert "published" in docstring.lower()


def test_a_configuration_of_the_package_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert configs.load("transformer_xl/quickstart") == configs.load(
        str(CONFIGS / "transformer_xl" / "quickstart.py")
    )
    assert configs.load("transformer_xl/quickstart") != configs.load("quickstart")
    for wrong in ("quickstrt", "configs/quickstart.py"):
        with pytest.raises(
            BadInput, match=rf"{wrong}: no such file. Did you mean '--config=quickstart'\?"
        ):
            configs.load(wrong)
    (tmp_path / "quickstart").mkdir()
    assert configs.load("quickstart") == configs.load(QUICKSTART)


def test_large_has_the_published_settings():
    config = configs.load(str(CONFIGS / "xlnet_large.py"))
    model, data = config.model, config.data
    assert (model.layers, model.d_model, model.heads, model.head_dim, model.d_ff) == (
        24,
        1024,
        16,
        64,
        4096,
    )
    assert (data.segment_len, data.reuse_len, model.memory_len, data.num_predict) == (
        512,
        256,
        384,
        85,
    )
    assert (data.mask_group_size, data.masks_per_group, config.train.batch_size) == (6, 1, 2048)


def test_overrides_take_the_type_of_their_key():
    words = [
        "--config.train.steps=70000",
        "--config.model.dropout=0",
        "--config.data.bidirectional=false",
    ]
    config = configs.load(str(CONFIGS / "xlnet_base.py"), words)
    assert (config.train.steps, config.model.dropout, config.data.bidirectional) == (
        70000,
        0.0,
        False,
    )
    assert isinstance(config.model.dropout, float)
    again = configs.override(config, ["--config.mesh.fsdp=4"])
    assert again.mesh.fsdp == 4 and again.model == config.model


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("no, yes", ["no", "yes"]),
        ('["joy, love", " anger"]', ["joy, love", " anger"]),
        ('[",", "\'\'", "\\""]', [",", "''", '"']),
        ("[,]", ["[", "]"]),
    ],
)
def test_names_are_a_text_with_commas_or_a_list(value, names):
    config = configs.load(
        QUICKSTART, [f"--config.finetune.labels={value}", f"--config.finetune.columns={value}"]
    )
    assert config.finetune.label_list() == config.finetune.column_list() == names
    assert configs.from_dict(configs.nested(configs.flat(config))) == config
    with pytest.raises(
        BadInput, match=r"'\[.a, b., ' is no list of JSON .* write it as \[.joy, love., .anger.\]"
    ):
        Config().changed(finetune={"labels": '["a, b", '}).finetune.label_list()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--config.train.stps=10", "no config key 'train.stps'. Did you mean 'train.steps'?"),
        ("--config.modl.heads=10", "Did you mean 'model"),
        (
            "--config.optimizer.lr=1",
            "no config key 'optimizer.lr'. Did you mean 'optimizer.learning_rate'?",
        ),
        ("--config.train.learning_rate=1", "Did you mean 'optimizer.learning_rate'?"),
        ("--config.batch_size=8", "Did you mean 'train.batch_size'?"),
        ("--config.zzz=8", "no config key 'zzz'; docs/configuration.md lists them"),
        ("--config.train.steps=ten", "--config.train.steps=ten"),
        ("--config.train.steps", "has no value; write --config.train.steps=VALUE"),
        ("--steps=10", "unknown option '--steps=10'"),
        (
            "--config.model.activation=swish",
            "model.activation='swish' is not one of gelu, gelu_erf, relu",
        ),
        ("--config.model.dropout=nan", "must be finite"),
        ("--config.data.segment_len=68", "too short for data.reuse_len=64.*use at least 69"),
        ("--config.data.num_predict=100", "leaves too little context"),
        ("--config.data.segment_len=4", "data.segment_len=4 must be at least 5"),
        ("--config.checkpoint.every=0", "checkpoint.every=0 must be at least 1"),
        ("--config.checkpoint.every=7", "must be a multiple of train.steps_per_dispatch=10"),
        ("--config.evaluation.every=7", "must be a multiple of train.steps_per_dispatch=10"),
        ("--config.optimizer.warmup_steps=800", r"must lie in \[0, train.steps=800\)"),
        ("--config.mesh.fsdp=-1", "mesh.data=-1 and another axis are both -1"),
        ("--config.model.d_model=129", "must be even"),
        (
            "--config.compat.switches=piece_span",
            "compat.switches=piece_span has no 'piece_span'. Did you mean 'piece_spans'?",
        ),
        ("--config.compat.cores=3", "compat.cores=3 must divide train.batch_size=16"),
        ("--config.optimizer.layer_decay=0", "must be above 0"),
        ("--config.optimizer.adam_b1=1", "must be below 1"),
        ("--config.model.clamp_len=0", "model.clamp_len=0 must be -1 .off. or at least 1"),
    ],
)
def test_a_mistake_is_one_line_that_names_key_value_and_fix(word, message):
    with pytest.raises(BadInput, match=message) as raised:
        configs.load(QUICKSTART, [word])
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


MODERN = {"architecture": "modern", "norm": "pre", "window": 128}
MODERNBERT = MODERN | {"architecture": "modernbert", "memory_len": 0}
MASKED = {"objective": "mlm", "pairs": "none", "bidirectional": False}
OF_T = {"segment_len": 514, "reuse_len": 512, "num_predict": 77}


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (MODERN | {"global_every": 0}, {}, "model.global_every=0 must be at least 1"),
        (MODERN | {"head_dim": 63}, {}, "model.head_dim=63 must be even: rotary positions turn"),
        (MODERN | {"theta": 0.5}, {}, "model.theta=0.5 must be at least 1"),
        (MODERN | {"theta_local": 0.5}, {}, "model.theta_local=0.5 must be at least 1"),
        (
            MODERN | {"window": 0, "global_every": 2},
            {},
            "model.global_every=2 is for layers with a window; use 3 with model.window=0",
        ),
        (MODERN | {"window": 0, "theta": 2.0}, {}, ""),
        (MODERN | {"window": 1}, {}, "model.window=1 must be 0 .off. or at least 2"),
        (MODERN | {"clamp_len": 9}, {}, "model.clamp_len=9 is not for model.architecture=modern"),
        (MODERN | {"same_length": True}, {}, "model.same_length=True is not for .*; use False"),
        (MODERN | {"norm": "post"}, {}, "model.norm=post is not for .*=modern; use 'pre'"),
        (MODERN | {"max_positions": 8}, {}, ""),
        (MODERNBERT, MASKED | OF_T, "data.segment_len=514 is more than model.max_positions=512"),
        (MODERNBERT, {}, "data.objective=plm is not for .*, which is trained by mlm or mdm"),
        (MODERNBERT | {"memory_len": 8}, MASKED, "model.memory_len=8 is not for .*; use 0"),
        ({"window": 64}, {}, "model.window=64 is for rotary positions; use 0 with .*=xlnet"),
        ({"global_every": 2}, {}, "model.global_every=2 is for rotary positions; use 3 with"),
        ({"theta": 2.0}, {}, "model.theta=2.0 is for rotary positions; use 10000.0 with"),
        ({"theta_local": 2.0}, {}, "model.theta_local=2.0 is for rotary positions"),
    ],
)
def test_rules_of_rotary_positions_and_windows(model, data, message):
    config = Config().changed(model=model, data=data)
    if not message:
        return configs.check(config)
    with pytest.raises(BadInput, match=message) as raised:
        configs.check(config)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)


def test_names_of_other_programs_are_no_keys_here_and_name_keys():
    keys = configs.fields()
    assert {*NAMES.values()} <= keys.keys() and not NAMES.keys() & {
        key.split(".")[1] for key in keys
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("c.model.d_modl = 3", "no key 'd_modl'. Did you mean 'model.d_model'?"),
        ("c['train'].update({'stps': 3})", "no key 'stps'. Did you mean 'train.steps'?"),
        (
            "c.data.segment_len = c.data.segmentlen",
            "no key 'segmentlen'. Did you mean 'data.segment_len'?",
        ),
        ("c.modl.d_model = 3", "no key 'modl'. Did you mean 'model.d_model'?"),
        ("c.model.zzz = 3", "no key 'zzz'"),
    ],
)
def test_a_wrong_key_in_a_file_is_told_with_its_line_and_the_nearest_name(tmp_path, line, told):
    path = tmp_path / "typo.py"
    path.write_text(
        "from xlnet_jax import config\n"
        "def get_config():\n"
        "  c = config.default()\n"
        f"  {line}\n"
        "  return c\n"
    )
    with pytest.raises(BadInput) as raised:
        configs.load(str(path))
    said = re.fullmatch(
        rf"--config={path}, line 4: (AttributeError|KeyError): (.*)", str(raised.value)
    )
    assert said and said[2] == told


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("\nx = 1 +\n", ", line 2: SyntaxError: invalid syntax"),
        ("\n\nraise OSError('no\\nlicence')\n", ", line 3: OSError: no licence"),
        (
            "def get_config():\n  return deep()\ndef deep():\n  assert False\n",
            ", line 4: AssertionError",
        ),
        ("import sys\nsys.exit(0)\n", ", line 2: ended the program (SystemExit: 0)"),
        (
            "import json\ndef get_config():\n  json.loads('{')\n",
            ", line 3: JSONDecodeError: Expecting property",
        ),
        ("class Odd(BaseException): pass\nraise Odd('end')\n", ", line 2: Odd: end"),
        ("print('hello')\n", ": KeyError: no key 'get_config'"),
        ("x = '\\udc80'\nopen('nowhere/x')\n", ", line 2: FileNotFoundError"),
    ],
)
def test_whatever_a_file_raises_is_told_with_its_line(tmp_path, capsys, source, message):
    path = tmp_path / "odd.py"
    path.write_text(source)
    with pytest.raises(BadInput) as raised:
        configs.load(str(path))
    assert str(raised.value).startswith(f"--config={path}{message}") and "\n" not in str(
        raised.value
    )
    assert capsys.readouterr().out == "", "stdout is for the result"


@pytest.mark.parametrize(
    "conflicts",
    [
        {
            "train.steps=0": "steps=0 must be",
            "model.activation=swish": "is not one",
            "model.dropout=2": "2.0 must be",
        },
        {"compat.switches=spans": "no 'spans'", "optimizer.warmup_steps=800": "must lie in"},
    ],
)
def test_all_conflicts_are_told_at_once(conflicts):
    """Of values first; then, when all are allowed, those between them."""
    with pytest.raises(BadInput) as raised:
        configs.load(QUICKSTART, [f"--config.{word}" for word in conflicts])
    told = str(raised.value)
    assert (
        told.startswith(f"{len(conflicts)} conflicts in the configuration: (1) ")
        and "\n" not in told
    )
    assert all(part in told for part in conflicts.values())


@pytest.mark.parametrize(
    "word",
    ["optimizer.decay_fraction=nan", "model.architecture=foo"],
)
def test_no_rule_computes_with_a_value_that_is_not_allowed(word):
    with pytest.raises(
        BadInput, match=f"^{word.split('=')[0]}=.* (must be finite|is not one of [a-z0-9_, ]*)$"
    ):
        configs.load(QUICKSTART, ["--config.optimizer.schedule=wsd", f"--config.{word}"])


@pytest.mark.parametrize(
    "name", [name for name, field in configs.fields().items() if type(field.default) is int]
)
def test_a_number_too_large_for_any_run_is_refused(name):
    """Else the program takes all memory, or an hour, or an int32 overflows on the device."""
    bounds = configs.fields()[name].metadata["bounds"]
    value = bounds.get("below") or bounds["at most"] + 1
    assert value <= 2**32
    with pytest.raises(BadInput, match=f"{name}={value} must be .*(at most|below) "):
        configs.load(QUICKSTART, [f"--config.{name}={value}"])


def test_every_key_is_documented_and_has_a_resume_rule():
    for name, field in configs.fields().items():
        assert field.metadata["doc"], name
        assert field.metadata["resume"] in (configs.FROZEN, configs.ELASTIC, configs.FREE), name
    frozen = {
        name.split(".")[0]
        for name, field in configs.fields().items()
        if field.metadata["resume"] == "frozen"
    }
    assert frozen == {"model", "data", "seeds", "compat", "finetune", "optimizer"}
    # How it is computed, and not what.
    assert {
        name
        for name, field in configs.fields().items()
        if name.startswith("model.") and field.metadata["resume"] == configs.FREE
    } == {"model.remat", "model.attention", "model.unroll"}


def test_changed_keys_by_rule():
    before = configs.flat(Config())
    now = Config().changed(train={"batch_size": 4, "steps": 60_000}, seeds={"data": 5})
    assert configs.changed_keys(now, before, configs.FROZEN) == ["seeds.data: 1 -> 5"]
    assert configs.changed_keys(now, before, configs.ELASTIC) == ["train.batch_size: 2048 -> 4"]
    assert configs.changed_keys(now, before, configs.FREE) == ["train.steps: 500000 -> 60000"]


def test_the_documented_table_is_the_code():
    page = runpy.run_path(str(tiny.ROOT / "docs" / "configuration.py"))["page"]()
    assert page == (tiny.ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"), (
        "run docs/configuration.py"
    )
