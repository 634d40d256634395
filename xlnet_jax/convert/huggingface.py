"""Folders of Hugging Face `transformers`: weights, configuration, tokenizer and model card, written
and read.

The library itself is not needed. Its XLNet is the original graph with three differences that matter
here: dense kernels are transposed, biases are always per layer, and its "gelu" is the erf form,
where the original has tanh. The fine-tuning heads of that library load from the same folder.

    names             our parameters there
    fields            our configuration there
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
"""Size from which weights are split into several files, as that library does."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_BUFFERS = (".position_ids", ".token_type_ids", ".attn.bias", ".attn.masked_bias")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
"""BF16 is a dtype that numpy lacks; all but float32 are refused anyway."""


def check(config: Config) -> None:
    """Raises BadInput for a model that the library computes in another way, before a checkpoint is
    read.
    """
    model, task, row = config.model, config.finetune.task, peers.peer(config.model)
    fields.check(model)
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

    Beside the parameters, memory is needed for the kernels of one file, which are transposed there.
    Raises BadInput: the library cannot express the model or the tokenizer, they do not fit each
    other, or the folder cannot be written or is not empty.
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
        fields.OWN: fields.own(config),
    }
    if config.finetune.task == "embeddings":
        documents |= sentence_transformers.documents(config)
    contents = {name: files.to_json(document, 2) for name, document in documents.items()}
    contents |= tokenizer_files.contents(tokenizer, config) | {
        "README.md": model_card(trained).encode()
    }
    tensors = names.to_foreign(peers.table(config), trained.params)
    output = files.resolve(output)
    with files.translate_errors(output), files.new_folder(output) as partial:
        for name, content in contents.items():
            files.make_folder(os.path.dirname(os.path.join(partial, name)))
            files.write(os.path.join(partial, name), content)
        _write_weights(partial, tensors, shard_bytes)


def _write_weights(folder: str, tensors: Mapping[str, np.ndarray], shard_bytes: int) -> None:
    """Writes files of at most `shard_bytes`, or of one array, beside a config.json that is
    there.
    """
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
        file_name = (
            f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else _WEIGHTS
        )
        # The package writes from the address of each array, into a file that only its owner may
        # read.
        arrays = {name: np.ascontiguousarray(tensors[name], np.dtype("<f4")) for name in shard}
        save_file(arrays, os.path.join(folder, file_name), {"format": "pt"})
        shutil.copymode(os.path.join(folder, "config.json"), os.path.join(folder, file_name))
        weight_map |= dict.fromkeys(shard, file_name)
    if len(shards) > 1:
        size = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        files.write(os.path.join(folder, _INDEX), files.to_json(index))


@contextlib.contextmanager
def open_weights(folder: str, row: Peer) -> Iterator[names.Arrays]:
    """The arrays of a folder, which may be in a bucket, under the names of `row`, as `write` has
    them.

    A bare model lacks what stands before the names, old files have `gamma` and `beta`, and other
    writers store buffers, and tied arrays twice. Raises BadInput if a second one is no copy, or for
    a file that is missing or damaged.
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
    places: dict[str, tuple[str, str]] = {}
    forms: dict[str, jax.ShapeDtypeStruct] = {}
    prefix, _, embedding = row.table[0].theirs.partition(".")
    whole = {entry.theirs for entry in row.table} | row.copies.keys()
    with contextlib.ExitStack() as stack:
        stored: dict[str, tuple[str, Any]] = {}
        for shard in shards:
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
        for name, (path, array) in stored.items():
            if name.endswith(_BUFFERS):
                continue
            # Parts of a LayerNorm in files of before 2020.
            known = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
                "LayerNorm.beta", "LayerNorm.bias"
            )
            if embedding in stored and known not in whole:
                known = f"{prefix}.{known}"
            places[known] = path, name
            forms[known] = jax.ShapeDtypeStruct(
                array.get_shape(), np.dtype(_DTYPES.get(array.get_dtype(), "uint8"))
            )

        def array_of(name: str) -> np.ndarray:
            path, stored_as = places[name]
            # Opened each time: an open file keeps what was read in memory.
            with safe_open(path, "numpy") as file:
                return file.get_tensor(stored_as)

        for copy, original in row.copies.items():
            if (
                copy in forms
                and original in forms
                and not np.array_equal(array_of(copy), array_of(original))
            ):
                raise BadInput(
                    f"{folder}: {copy} is not {original}; only tied ones can be imported"
                )
            if form := forms.pop(copy, None):
                forms.setdefault(original, form)
                places.setdefault(original, places[copy])
        yield names.Arrays(folder, forms, array_of)


def open_tokenizer(folder: str, named: str | None = None) -> Tokenizer:
    """The tokenizer that is `named`, or of a folder, with the rules of the folder. Raises BadInput
    without any.
    """
    listed, steps, made = files.listing(folder), None, ""
    with tempfile.TemporaryDirectory() as place:
        where = os.path.join(folder, "tokenizer.json")
        document = {} if named else files.read_json_if_listed(where)
        if isinstance(document.get("model"), dict) and not isinstance(
            document["model"].get("vocab"), dict
        ):
            tokenizer_fields.check_file(document, where)
            model = tokenizer_json.sentencepiece_model(document, where)
            steps = tokenizer_json.normalization_of(document, model, where)
            made = os.path.join(place, "spiece.model")
            files.write(made, model)
        named = named or vocabulary.file_in(folder, listed)
        if not named:
            raise BadInput(
                f"{folder} has no {', '.join(vocabulary.FOUND)}; "
                "name one with --tokenizer=spiece.model"
            )
        opened = vocabulary.open_in(folder, made if made and named == where else named, steps)
        if made and Tokenizer(made).pieces != opened.pieces:
            raise BadInput(
                f"{where}: its pieces are not those of {named}; remove the file that is wrong"
            )
    opened.path = named
    return opened


def recognise(path: str, listed: Collection[str]) -> bool:
    """Whether a folder is one; a work directory has a config.json as well."""
    return "config.json" in listed and "checkpoints/" not in listed


@contextlib.contextmanager
def read(path: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[formats.Source]:
    """Where the files disagree, config.json is right; but whether there is a head for pairs, its
    arrays say.
    """
    found = fields.read_config_json(path)
    model, of_run = fields.read_model(path, found), fields.read_own(path, found["model_type"])
    known = fields.read_lengths(found) | of_run | model | fields.read_task(path, found)
    listed, asked = files.listing(path), []
    if fields.MODULES in listed and known.get("finetune.task") == "embeddings":
        of_modules, asked = sentence_transformers.read(path, listed, model)
        known |= of_modules
    config, assumed = formats.configured(path, known, overrides, fields.read_data(model))
    row = peers.peer(config.model)
    own = open_tokenizer(path, tokenizer)
    config = formats.fitted(config, own)
    tokenizer_files.check_frame(path, own, config)
    name = config.model.architecture
    if not config.model.member.xlnet_ids and (why := vocabulary.unexportable(own, name)):
        raise BadInput(f"tokenizer {own.path}: {why}")
    kept, lost = fields.read_kept(found, config, own.special)
    with open_weights(path, row) as arrays:
        of_pairs = {entry.theirs for entry in row.table if entry.ours.startswith("sentence_head/")}
        if config.pretrains and of_pairs & arrays.forms.keys():
            config = config.changed(data={"sentence_loss": True})
        table = peers.table(config)
        # Many a folder has the pooler that its class does not read.
        spare = {name for name in arrays.forms if ".pooler." in name} - {
            entry.theirs for entry in table
        }
        used = arrays._replace(
            forms={name: form for name, form in arrays.forms.items() if name not in spare}
        )
        convert, lost = (
            functools.partial(names.from_foreign, table),
            [*lost, *asked, *sorted(spare)],
        )
        yield formats.Source(path, "huggingface", config, own, used, convert, assumed, kept, lost)
