"""Folders of Hugging Face `transformers`: weights, configuration, tokenizer and model card, written and read.

The library itself is not needed. Its XLNet is the original graph with three differences that matter here: dense kernels
are transposed, biases are always per layer, and its "gelu" is the erf form, where the original has tanh. The
fine-tuning heads of that library load from the same folder.

    names     our parameters there        fields    our configuration there        tokenizer_json  the tokenizer
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from xlnet_jax.config import Config, FinetuneConfig, ModelConfig
from xlnet_jax.convert import fields, formats, names, tokenizer_files, tokenizer_json
from xlnet_jax.convert.model_card import model_card
from xlnet_jax.data import vocabulary
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.storage import files

SHARD_BYTES = 5 * 10**9
"""Size from which weights are split into several files, as that library does."""
_WEIGHTS, _INDEX, _TIED = "model.safetensors", "model.safetensors.index.json", "lm_loss.weight"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
"""BF16 is a dtype that numpy lacks; all but float32 are refused anyway."""


def check(config: Config) -> None:
    """Raises BadInput for a model that the library computes in another way, before a checkpoint is read."""
    model = config.model
    fields.check(model)
    if model.heads * model.head_dim != model.d_model:
        raise BadInput(
            f"model.heads={model.heads} times model.head_dim={model.head_dim} is not model.d_model={model.d_model}, "
            f"which Hugging Face's XLNet requires; train with model.head_dim={model.d_model / model.heads:g} to export"
        )
    if config.data.objective == "clm":
        raise BadInput("data.objective=clm: Hugging Face's XLNet sees both sides (plm, mlm); use --format=orbax")


def write(trained: formats.Trained, output: str, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the folder; on disk it appears complete or not at all.

    Beside the parameters, memory is needed for the kernels of one file, which are transposed there. Raises BadInput:
    the library cannot express the model or the tokenizer, they do not fit each other, or the folder cannot be written
    or is not empty.
    """
    config, tokenizer = trained.config, trained.tokenizer
    check(config)
    formats.check_output(output)
    formats.check_tokenizer(tokenizer, config)
    tokenizer_files.check(tokenizer, config)
    max_length = config.data.segment_len
    documents = {
        "config.json": fields.config_json(config.model, config.finetune, trained.kept),
        "generation_config.json": {"_from_model_config": True} | fields.BOS_EOS_PAD,
        fields.OWN: fields.own(config),
    }
    if config.finetune.task == "embeddings":
        documents |= _sentence_transformers(config.finetune, config.model, max_length)
    contents = {name: files.to_json(document, 2) for name, document in documents.items()}
    contents |= tokenizer_files.contents(tokenizer, config) | {"README.md": model_card(trained).encode()}
    tensors = names.to_foreign(names.of_huggingface(config.finetune.task), trained.params)
    output = files.resolve(output)
    with files.translate_errors(output), files.new_folder(output) as partial:
        for name, content in contents.items():
            files.make_folder(os.path.dirname(os.path.join(partial, name)))
            files.write(os.path.join(partial, name), content)
        _write_weights(partial, tensors, shard_bytes)


def _write_weights(folder: str, tensors: Mapping[str, np.ndarray], shard_bytes: int) -> None:
    """Writes files of at most `shard_bytes`, or of one array, beside a config.json that is there."""
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= tensor.nbytes
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else _WEIGHTS
        # The package writes from the address of each array, into a file that only its owner may read.
        arrays = {name: np.ascontiguousarray(tensors[name], np.dtype("<f4")) for name in shard}
        save_file(arrays, os.path.join(folder, file_name), {"format": "pt"})
        shutil.copymode(os.path.join(folder, "config.json"), os.path.join(folder, file_name))
        weight_map |= dict.fromkeys(shard, file_name)
    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        files.write(os.path.join(folder, _INDEX), files.to_json(index))


def _sentence_transformers(task: FinetuneConfig, model: ModelConfig, max_length: int) -> dict[str, Any]:
    """The files that make the folder a model of that library: the transformer, then its pooling."""
    root = "sentence_transformers.models"
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    return {
        "modules.json": [{"idx": number, "name": str(number), "path": path, "type": f"{root}.{kind}"}
                         for number, (path, kind) in enumerate(modules)],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        # XLNet's CLS is the last token. All versions read these older names.
        "1_Pooling/config.json": {"word_embedding_dimension": model.d_model,
                                  "pooling_mode_cls_token": False,
                                  "pooling_mode_mean_tokens": task.pooling == "mean",
                                  "pooling_mode_lasttoken": task.pooling == "cls"},
    }  # fmt: skip


@contextlib.contextmanager
def open_weights(folder: str) -> Iterator[names.Arrays]:
    """The arrays of a folder, which may be in a bucket, as `write` names them.

    A bare `XLNetModel` lacks `transformer.` before the names, and other writers store the word embedding twice. Raises
    BadInput if the second is no copy, or for a file that is missing or damaged.
    """
    listed, shards = files.listing(folder), [_WEIGHTS]
    if _INDEX in listed:
        index = files.read_json_object(os.path.join(folder, _INDEX)).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise BadInput(f"{folder}/{_INDEX}: its weight_map does not name the file of each array")
        shards = sorted(set(index.values()))
    if missing := [name for name in shards if name not in listed]:
        raise BadInput(f"{folder} has no {', '.join(missing)}; save the model in safetensors")
    paths: dict[str, str] = {}
    forms: dict[str, jax.ShapeDtypeStruct] = {}
    with contextlib.ExitStack() as stack:
        for shard in shards:
            path = stack.enter_context(files.local_copy(os.path.join(folder, shard)))
            try:
                with safe_open(path, "numpy") as file:
                    stored: dict[str, Any] = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                    for name, array in stored.items():
                        dtype = np.dtype(_DTYPES.get(array.get_dtype(), "uint8"))
                        forms[name] = jax.ShapeDtypeStruct(array.get_shape(), dtype)
            except (SafetensorError, KeyError) as error:
                raise BadInput(f"{folder}/{shard}: not a safetensors file ({error}); copy it again") from error
            paths |= dict.fromkeys(stored, path)

        prefix = "transformer." * ("word_embedding.weight" in forms)

        def array_of(name: str) -> np.ndarray:
            stored = name.removeprefix(prefix)
            # Opened each time: an open file keeps what was read in memory.
            with safe_open(paths[stored], "numpy") as file:
                return file.get_tensor(stored)

        forms = {f"{prefix}{name}": form for name, form in forms.items()}
        embedding, tied = names.HUGGINGFACE[0].theirs, forms.pop(_TIED, None)
        if tied and embedding in forms and not np.array_equal(array_of(_TIED), array_of(embedding)):
            raise BadInput(f"{folder}: {_TIED} is not the word embedding; only tied ones can be imported")
        yield names.Arrays(folder, forms, array_of)


@contextlib.contextmanager
def open_tokenizer(folder: str, named: str | None = None) -> Iterator[Tokenizer]:
    """The tokenizer that is `named`, or of a folder, with the rules of the folder. Raises BadInput without any."""
    listed = files.listing(folder)
    if not named and "spiece.model" not in listed and "tokenizer.json" in listed:
        document = files.read_json_object(os.path.join(folder, "tokenizer.json"))
        if not isinstance(document.get("model"), dict) or not isinstance(document["model"].get("vocab"), dict):
            with tempfile.TemporaryDirectory() as place:
                made = os.path.join(place, "spiece.model")
                files.write(made, tokenizer_json.sentencepiece_model(document, f"{folder}/tokenizer.json"))
                yield vocabulary.open_in(folder, listed, made)
            return
    if not named and not (named := vocabulary.file_in(folder, listed)):
        raise BadInput(f"{folder} has no {', '.join(vocabulary.FOUND)}; name one with --tokenizer=spiece.model")
    yield vocabulary.open_in(folder, listed, named)


def recognise(path: str, listed: Collection[str]) -> bool:
    """Whether a folder is one; a work directory has a config.json as well."""
    return "config.json" in listed and "checkpoints/" not in listed


@contextlib.contextmanager
def read(path: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[formats.Source]:
    """Where the files disagree, config.json is right."""
    found, of_run = fields.read_config_json(path), fields.read_own(path)
    known = fields.read_lengths(found) | of_run | fields.read_model(path, found) | fields.read_task(path, found)
    config, assumed = formats.configured(path, known, overrides)
    convert = functools.partial(names.from_foreign, names.of_huggingface(config.finetune.task))
    kept, lost = fields.read_kept(found, config)
    with open_tokenizer(path, tokenizer) as own:
        formats.check_tokenizer(own, config)
        with open_weights(path) as arrays:
            yield formats.Source(path, "huggingface", config, own, arrays, convert, assumed, kept, lost)
