"""Writes and reads folders of Hugging Face `transformers`: weights, configuration, tokenizer and
model card.

The library itself is not needed. Its XLNet is the original graph with three differences that matter
here: dense kernels are transposed, every layer has its own biases, and "gelu" is the erf form in
place of the tanh form. The fine-tuning heads of that library load from the same folder.

    names             our parameters under the names of the library
    fields            our configuration under the names of the library
    tokenizer_json    the tokenizer
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

from xlnet_jax.config import Config
from xlnet_jax.convert import (
    counted_json,
    fields,
    formats,
    names,
    peers,
    sentence_transformers,
    tokenizer_files,
    tokenizer_json,
)
from xlnet_jax.convert.model_card import model_card
from xlnet_jax.data import tokenizer_fields, vocabulary
from xlnet_jax.data.tokenizer import Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.members.peer import Peer
from xlnet_jax.storage import files

SHARD_BYTES = 5 * 10**9
"""Size above which weights are split into several files, as the library does."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BUFFERS = (".position_ids", ".token_type_ids", ".attn.bias", ".attn.masked_bias")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
"""Names of dtypes for messages; only float32 is accepted."""


def check(config: Config) -> None:
    """Raises BadInput for a model that the library computes differently. Reads no checkpoint."""
    model, task, row = config.model, config.finetune.task, peers.peer(config.model)
    fields.check_model(model)
    if model.heads * model.head_dim != model.d_model:
        raise BadInput(
            f"model.heads={model.heads} times model.head_dim={model.head_dim} is not "
            f"model.d_model={model.d_model}, which Hugging Face's {row.prefix} requires; train "
            f"with model.head_dim={model.d_model / model.heads:g} to export"
        )
    if config.objective.causal and model.member.cls != "none":
        raise BadInput(
            f"data.objective=clm: Hugging Face's {row.title} "
            "sees both sides (plm, mlm); use --format=orbax"
        )
    if task != "none" and peers.EXPORTS[task].name not in row.heads:
        raise BadInput(
            f"finetune.task={task}: Hugging Face has no "
            f"{peers.class_of(config)}; use --format=orbax"
        )


def write(trained: formats.Trained, output: str, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the folder; on disk it appears complete or not at all.

    Besides the parameters, needs memory for the transposed kernels of one file. Raises BadInput if
    the library cannot express the model or the tokenizer, or if they do not fit each other. Raises
    BadInput also if the folder cannot be written or is not empty.
    """
    config, tokenizer = trained.config, trained.tokenizer
    check(config)
    formats.check_output(output)
    formats.check_tokenizer(tokenizer, config)
    if why := vocabulary.unexportable(tokenizer, config.model.architecture):
        raise BadInput(f"tokenizer {tokenizer.path}: {why}")
    settings = fields.config_json(config, tokenizer.special, trained.kept)
    documents = {
        "config.json": settings,
        "generation_config.json": {"_from_model_config": True}
        | {
            name: settings[name]
            for name in ("bos_token_id", "eos_token_id", "pad_token_id")
            if name in settings
        },
        fields.OWN: fields.own_keys(config),
    }
    if config.finetune.task == "embeddings":
        documents |= sentence_transformers.documents(config)
    contents = {name: files.to_json(document, 2) for name, document in documents.items()}
    contents |= tokenizer_files.contents(tokenizer, config)
    contents["README.md"] = model_card(trained).encode()
    tensors = names.to_foreign(peers.table(config), trained.params)
    output = files.resolve(output)
    with files.translate_errors(output), files.new_folder(output) as partial:
        for name, content in contents.items():
            files.make_folder(os.path.dirname(os.path.join(partial, name)))
            files.write(os.path.join(partial, name), content)
        _write_weights(partial, tensors, shard_bytes)


def _write_weights(folder: str, tensors: Mapping[str, np.ndarray], shard_bytes: int) -> None:
    """Writes the arrays into files of at most `shard_bytes`; a larger array has its own file. The
    files get the file mode of the config.json beside them.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    for name, tensor in tensors.items():
        size = sum(other.nbytes for other in shards[-1].values())
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = (
            f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else _WEIGHTS
        )
        path = os.path.join(folder, file_name)
        # safetensors reads contiguous memory, and writes a file that only its owner may read.
        arrays = {name: np.ascontiguousarray(each, "<f4") for name, each in shard.items()}
        save_file(arrays, path, {"format": "pt"})
        shutil.copymode(os.path.join(folder, "config.json"), path)
        weight_map |= dict.fromkeys(shard, file_name)
    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        files.write(os.path.join(folder, _INDEX), files.to_json(index))


def _weight_files(folder: str) -> list[str]:
    """Returns the names of the files of weights. Raises BadInput for a missing file or a damaged
    index.
    """
    listed, shards = files.listing(folder), [_WEIGHTS]
    if _INDEX in listed:
        index = files.read_json_object(os.path.join(folder, _INDEX)).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise BadInput(
                f"{folder}/{_INDEX}: its weight_map does not name the file of each array"
            )
        shards = sorted(set(index.values()))
    if missing := [name for name in shards if name not in listed]:
        raise BadInput(f"{folder} has no {', '.join(missing)}; save the model in safetensors")
    return shards


@contextlib.contextmanager
def open_weights(folder: str, row: Peer) -> Iterator[names.Arrays]:
    """Opens the arrays of a folder, also in a bucket, under the names of `row`, which `write` uses.

    The names of a bare model lack the first part, and old files have `gamma` and `beta`. Some
    writers store buffers, or a tied array twice. Raises BadInput if the two copies of a tied array
    differ, or if a file is missing or damaged.
    """
    stored: dict[str, tuple[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        for shard in _weight_files(folder):
            path = stack.enter_context(files.local_copy(os.path.join(folder, shard)))
            try:
                with safe_open(path, "numpy") as file:
                    stored |= {
                        name: (path, file.get_slice(name))
                        for name in file.keys()  # noqa: SIM118
                    }
            except (SafetensorError, KeyError) as error:
                raise BadInput(
                    f"{folder}/{shard}: not a safetensors file ({error}); copy it again"
                ) from error
        prefix, _, embedding = row.table[0].theirs.partition(".")
        whole = {entry.theirs for entry in row.table} | row.copies.keys()
        places: dict[str, tuple[str, str]] = {}
        forms: dict[str, jax.ShapeDtypeStruct] = {}
        for name, (path, array) in stored.items():
            if name.endswith(_BUFFERS):
                continue
            # Names of LayerNorm in files from before 2020.
            known = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
                "LayerNorm.beta", "LayerNorm.bias"
            )
            if embedding in stored and known not in whole:
                known = f"{prefix}.{known}"
            places[known] = path, name
            forms[known] = jax.ShapeDtypeStruct(
                array.get_shape(), np.dtype(_DTYPES.get(array.get_dtype(), "uint8"))
            )

        def read_array(name: str) -> np.ndarray:
            path, stored_as = places[name]
            # Opened for each array, because an open file keeps all read arrays in memory.
            with safe_open(path, "numpy") as file:
                return file.get_tensor(stored_as)

        for copy, original in row.copies.items():
            if {copy, original} <= forms.keys() and not np.array_equal(
                read_array(copy), read_array(original)
            ):
                raise BadInput(
                    f"{folder}: {copy} differs from {original}; only tied arrays can be imported"
                )
            if form := forms.pop(copy, None):
                forms.setdefault(original, form)
                places.setdefault(original, places[copy])
        yield names.Arrays(folder, forms, read_array)


def open_tokenizer(folder: str, named: str | None = None) -> Tokenizer:
    """Opens the tokenizer file `named`, or else the tokenizer of the folder, with the text rules of
    the folder. Raises BadInput if there is none.
    """
    steps, made = None, ""
    with tempfile.TemporaryDirectory() as place:
        where = os.path.join(folder, "tokenizer.json")
        document = {} if named else files.read_json_if_listed(where)
        model = document.get("model")
        if isinstance(model, dict) and model.get("type") == "WordLevel":
            tokenizer_fields.check_file(document, where)
            made = os.path.join(place, vocabulary.Vocabulary.file_name)
            steps = counted_json.write_vocabulary(document, where, made)
        elif isinstance(model, dict) and not isinstance(model.get("vocab"), dict):
            tokenizer_fields.check_file(document, where)
            model = tokenizer_json.sentencepiece_model(document, where)
            steps = tokenizer_json.normalization_of(document, model, where)
            made = os.path.join(place, "spiece.model")
            files.write(made, model)
        named = named or vocabulary.file_in(folder)
        if not named:
            raise BadInput(
                f"{folder} has no {', '.join(vocabulary.FOUND)}; "
                "name one with --tokenizer=spiece.model"
            )
        opened = vocabulary.open_in(folder, made if made and named == where else named, steps)
        twin = vocabulary.open_in(place, made) if made else opened
        if (twin.pieces, twin.pattern) != (opened.pieces, opened.pattern):
            raise BadInput(
                f"{where}: its pieces are not those of {named}; remove the file that is wrong"
            )
    opened.path = named
    return opened


def recognise(path: str, listed: Collection[str]) -> bool:
    """Returns whether a folder is for transformers. A work directory has a config.json too, but
    also `checkpoints/`.
    """
    return "config.json" in listed and "checkpoints/" not in listed


@contextlib.contextmanager
def read(path: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[formats.Source]:
    """Opens a folder. Where the files disagree, config.json counts, except that the arrays decide
    whether the model has a head for pairs of sentences.
    """
    found = fields.read_config_json(path)
    model, of_run = fields.read_model(path, found), fields.read_own(path, found["model_type"])
    known = fields.read_lengths(found) | of_run | model | fields.read_task(path, found)
    listed, asked = files.listing(path), []
    if fields.MODULES in listed and known.get("finetune.task") == "embeddings":
        of_modules, asked = sentence_transformers.read_modules(path, listed, model)
        known |= of_modules
    config, assumed = formats.make_config(path, known, overrides, fields.read_usual(model))
    row = peers.peer(config.model)
    own = open_tokenizer(path, tokenizer)
    config = formats.fit_vocabulary(config, own)
    tokenizer_files.check_frame(path, own, config)
    why = vocabulary.unexportable(own, config.model.architecture)
    if why and not config.model.member.xlnet_ids:
        raise BadInput(f"tokenizer {own.path}: {why}")
    kept, lost = fields.read_kept(found, config, own.special)
    with open_weights(path, row) as arrays:
        of_pairs = {entry.theirs for entry in row.table if entry.ours.startswith("sentence_head/")}
        if config.pretrains and of_pairs & arrays.forms.keys():
            config = config.changed(data={"sentence_loss": True})
        table = peers.table(config)
        known_here = {entry.theirs for entry in table}
        # Many folders have a pooler that the class of their model does not read.
        spare = [name for name in arrays.forms if ".pooler." in name and name not in known_here]
        for name in spare:
            del arrays.forms[name]
        convert, lost = functools.partial(names.from_foreign, table), lost + asked + sorted(spare)
        yield formats.Source(path, "huggingface", config, own, arrays, convert, assumed, kept, lost)
