"""TensorFlow checkpoints of XLNet and Transformer-XL, written here with their names and shapes,
come in bit for bit.

Needs TensorFlow, which `.venv-peers4` has; without it the file is skipped.
"""

import json

import jax
import numpy as np
import pytest
import released
import tiny
from convert.test_transformer_xl import SYMBOLS, read, vocabulary
from convert.test_transformer_xl import variables_of as xl_variables_of
from oracle import xl_replay

from xlnet_jax.cli import main
from xlnet_jax.commands.import_ import import_
from xlnet_jax.convert import names
from xlnet_jax.errors import BadInput
from xlnet_jax.members.xlnet import TENSORFLOW
from xlnet_jax.run import workdir as workdirs

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def write(folder, size, variables, **changes):
    """As the released archives have it: three files of the checkpoint, the configuration and the
    tokenizer.
    """
    folder.mkdir()
    config = released.SIZES[size] | {"ff_activation": "gelu", "untie_r": True} | changes
    (folder / "xlnet_config.json").write_text(json.dumps(config))
    released.write_tokenizer(folder, config["n_token"])
    return save(str(folder / "xlnet_model.ckpt"), variables)


def save(prefix, variables):
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tf.constant(array) for array in variables.values()],
    )
    return prefix


@pytest.mark.parametrize("size", ["tiny", "base", pytest.param("large", marks=pytest.mark.prove)])
def test_every_variable_comes_in(size, tmp_path, caplog):
    caplog.set_level("INFO")
    variables = released.tensorflow_arrays(size)
    slots = {
        f"{name}/adam_{kind}": array for name, array in list(variables.items())[:2] for kind in "mv"
    }
    write(tmp_path / "released", size, variables | slots | {"global_step": np.int64(500_000)})
    workdir = str(tmp_path / "work")
    found = import_(str(tmp_path / "released"), workdir, overrides=["--config.model.memory_len=8"])
    assert found == {"arrays": len(variables), "workdir": workdir}
    assert "5 optimizer slots and counters are not imported" in caplog.text
    assert "model.activation=gelu" in caplog.text
    model = workdirs.load_config(workdir).model
    assert (model.activation, model.memory_len) == ("gelu", 8)
    params, _ = tiny.saved_parameters(workdir)
    back = names.to_foreign(TENSORFLOW, params)
    assert back.keys() == variables.keys()
    for name, array in variables.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name)


def test_shared_biases_and_a_damaged_index(tmp_path):
    variables = released.tensorflow_arrays("tiny")
    tied = {
        f"model/transformer/{name}": variables[f"model/transformer/{name}"][0]
        for name in ("r_w_bias", "r_r_bias", "r_s_bias")
    }
    source = write(tmp_path / "tied", "tiny", variables | tied, untie_r=False)
    import_(source, str(tmp_path / "work"))
    np.testing.assert_array_equal(
        tiny.saved_parameters(str(tmp_path / "work"))[0]["biases"]["segment_bias"],
        tied["model/transformer/r_s_bias"],
    )
    (tmp_path / "tied" / "xlnet_model.ckpt.index").write_bytes(b"no index")
    with pytest.raises(BadInput, match="TensorFlow cannot read it"):
        import_(source, str(tmp_path / "other"))


@pytest.mark.parametrize("name", ["div_4", "projected", "plain"])
def test_a_transformer_xl_comes_in(name, tmp_path, capsys):
    """A checkpoint with Adam's slots, and no configuration beside it."""
    variables = xl_variables_of(xl_replay.load(name), xl_replay.CASES[name])
    slots = {
        f"{each}/{slot}": array for each, array in variables.items() for slot in ("Adam", "Adam_1")
    }
    counters = {
        "beta1_power": np.float32(0.1),
        "beta2_power": np.float32(0.9),
        "global_step": np.int64(9),
    }
    (tmp_path / "model").mkdir()
    prefix = save(str(tmp_path / "model" / "model.ckpt-0"), variables | slots | counters)
    workdir, symbols = str(tmp_path / "work"), tmp_path / "symbols.txt"
    symbols.write_text("\n".join(SYMBOLS))
    words = [
        f"--tokenizer={symbols}",
        "--config.model.memory_len=4",
        "--config.model.layer_norm_epsilon=1e-5",
    ]
    assert main(["import", str(tmp_path / "model"), f"--workdir={workdir}", *words]) == 0
    log = capsys.readouterr().err
    assert f"{len(slots) + 3} optimizer slots and counters are not imported" in log
    assert f"imported {len(variables)} arrays" in log and "--config.data.objective=clm" in log
    _, ids = vocabulary(tmp_path, SYMBOLS)
    _, expected = read(variables, ids)
    jax.tree.map(np.testing.assert_array_equal, tiny.saved_parameters(workdir)[0], expected)
    assert main(["import", f"{prefix}.index", f"--workdir={tmp_path}/other"]) == 2
    assert "needs the symbols of its vocabulary" in capsys.readouterr().err


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def one_byte(path):
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


DAMAGES = {"missing": lambda path: path.unlink(), "cut": cut, "one_byte": one_byte}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_data_file_is_one_line(damage, tmp_path, capsys):
    """Its index is whole, so that it opens; the fault is met when the arrays are read."""
    prefix = write(tmp_path / "model", "tiny", released.tensorflow_arrays("tiny"))
    (data,) = (tmp_path / "model").glob("*.data-*")
    DAMAGES[damage](data)
    words = [f"--workdir={tmp_path}/work", "--json", "--config.model.memory_len=4"]
    assert main(["import", prefix, *words]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "cannot read it" in each]
    assert prefix in line and line.endswith("; copy it again") and not (tmp_path / "work").exists()
