"""Folders of Hugging Face `transformers`: weights, configuration, tokenizer and model card, written and read.

The library itself is not needed. Its XLNet is the original graph with three differences that matter here: dense kernels
are transposed, biases are always per layer, and its "gelu" is the erf form, where the original has tanh. The
fine-tuning heads of that library load from the same folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open

from xlnet_jax.config import FinetuneConfig, ModelConfig
from xlnet_jax.convert import fields, names, tokenizer_json
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.storage import files

SHARD_BYTES = 5 * 10**9
"""Size from which the weights are split into several files, as that library does."""
NO_TASK = FinetuneConfig()

_RULES = {"do_lower_case": bool, "keep_accents": bool, "remove_space": bool, "nfkc": bool, "model_max_length": float}
"""Of the keys of tokenizer_config.json that are read."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TIED = "lm_loss.weight"


def check(model: ModelConfig, output: str) -> None:
    """Checks the model and the folder before a checkpoint is read. Raises BadInput."""
    fields.check(model)
    if model.heads * model.head_dim != model.d_model:
        raise BadInput(
            f"model.heads={model.heads} times model.head_dim={model.head_dim} is not model.d_model={model.d_model}, "
            f"which Hugging Face's XLNet requires; train with model.head_dim={model.d_model / model.heads:g} to export"
        )
    check_output(output)


def check_output(output: str) -> None:
    """Raises BadInput unless a folder can be written there: it does not exist, or is empty."""
    if "://" not in output and os.path.lexists(output) and not os.path.isdir(output):
        raise BadInput(f"export folder {output}: is not a folder; choose another name")
    if files.listing(files.resolve(output)):
        raise BadInput(f"export folder {output}: is not empty; choose another, nothing is overwritten")


def export(
    params: Mapping[str, Any], model: ModelConfig, tokenizer: Tokenizer, output: str, *, card: str = "",
    max_length: int = 512, shard_bytes: int = SHARD_BYTES, task: FinetuneConfig = NO_TASK,
    own: Mapping[str, Any] | None = None, kept: Mapping[str, Any] | None = None,
) -> list[str]:  # fmt: skip
    """Writes the folder; on disk it appears complete or not at all.

    The arrays are written one by one: beside the parameters, memory is needed for the largest one.

    Args:
      params: the unboxed tree of `XLNet` with its head, numpy arrays.
      model: its architecture.
      tokenizer: of the training run, with its normalization.
      output: a folder that does not exist yet or is empty, also `gs://`.
      card: the model card, Markdown.
      max_length: tokens to which its tokenizer cuts a text if asked to: the length of a segment in training.
      shard_bytes: the weights are split into files of at most this size, or of one array.
      task: that the model was fine-tuned on; its head is then in `params`.
      own: `fields.own` of the run, for an import; None: the folder gets no such file.
      kept: `fields.read_kept` of the folder that the run started from; None: it started from none.

    Returns:
      Paths of the files written, sorted.

    Raises:
      BadInput: the library cannot express the model or the tokenizer, the two do not fit each other, or the folder
        cannot be written or is not empty.
    """
    check(model, output)
    table = names.of_huggingface(task.task)
    if tokenizer.vocab_size != model.vocab_size:
        raise BadInput(
            f"tokenizer {tokenizer.path}: has {tokenizer.vocab_size} pieces, the model {model.vocab_size}; "
            "use the tokenizer that the model was trained with"
        )
    if tokenizer.level != "sentencepiece":
        raise BadInput(
            f"tokenizer {tokenizer.path}: a vocabulary of {tokenizer.level}; Hugging Face's XLNet needs SentencePiece "
            "pieces; use --format=orbax"
        )
    pieces = files.read(tokenizer.path)
    documents = {
        "config.json": fields.config_json(model, task, kept or {}),
        "generation_config.json": {"_from_model_config": True} | fields.BOS_EOS_PAD,
        "tokenizer.json": tokenizer_json.tokenizer_json(pieces, tokenizer.normalization, tokenizer.path),
        "tokenizer_config.json": tokenizer_json.tokenizer_config(tokenizer.normalization, max_length),
    }
    if own is not None:
        documents[fields.OWN] = dict(own)
    if task.task == "embeddings":
        documents |= _sentence_transformers(task, model, max_length)
    tensors = names.to_foreign(table, params)
    output = files.resolve(output)
    with files.translate_errors(output), files.new_folder(output) as partial:
        for file_name, document in documents.items():
            indent = None if file_name == "tokenizer.json" else 2
            files.make_folder(os.path.dirname(os.path.join(partial, file_name)))
            files.write(os.path.join(partial, file_name), files.to_json(document, indent))
        files.write(os.path.join(partial, "spiece.model"), pieces)
        files.write(os.path.join(partial, "README.md"), card.encode())
        _write_weights(partial, tensors, shard_bytes)
    return sorted(os.path.join(output, name) for name in files.listing(output))


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


def _write_weights(folder: str, tensors: Mapping[str, np.ndarray], shard_bytes: int) -> None:
    """One file, or several and an index."""
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= tensor.nbytes
    if len(shards) == 1:
        _write_safetensors(os.path.join(folder, _WEIGHTS), tensors)
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_safetensors(os.path.join(folder, file_name), {name: tensors[name] for name in shard})
        weight_map |= dict.fromkeys(shard, file_name)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    files.write(os.path.join(folder, _INDEX), files.to_json(index))


def _write_safetensors(path: str, tensors: Mapping[str, np.ndarray]) -> None:
    """A header of JSON with its length before it, then the bytes of every array, in float32.

    The writer of the package copies all arrays before it writes the first one.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data must be aligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, np.dtype("<f4")).data)


def read_model(folder: str) -> dict[str, Any]:
    """The keys of `ModelConfig` that a folder's config.json sets.

    Raises BadInput if the folder holds another architecture, or an XLNet that this package cannot express.
    """
    path, found = fields.read_config_json(folder)
    if found.get("model_type") != "xlnet":
        raise BadInput(f"{path}: model_type is {found.get('model_type')!r}; only 'xlnet' can be imported")
    if found.get("attn_type", "bi") != "bi" or found.get("same_length"):
        raise BadInput(f"{path}: attn_type='uni' and same_length=true cannot be imported")
    if found.get("tie_word_embeddings") is False:
        raise BadInput(f"{path}: tie_word_embeddings=false; here the softmax has the word embedding as its weights")
    theirs, ours = found.get("ff_activation", "gelu"), {theirs: ours for ours, theirs in fields.ACTIVATIONS.items()}
    if theirs not in ours:
        raise BadInput(f"{path}: ff_activation={theirs!r} is not one of {', '.join(ours)}")
    values = {ours: found[theirs] for ours, theirs in fields.NAMED.items() if theirs in found}
    # Its default, which follows the width.
    sizes = {name: values.get(name, getattr(ModelConfig(), name)) for name in ("d_model", "heads")}
    if "head_dim" not in values and all(isinstance(size, int) and size > 0 for size in sizes.values()):
        values["head_dim"] = sizes["d_model"] // sizes["heads"]
    return values | {"activation": ours[theirs], "biases_per_layer": True}


def read_task(folder: str) -> dict[str, dict[str, Any]]:
    """The sections `finetune` and `data` of a folder that `export` wrote of a fine-tuned model; {} of a pretrained one.

    Raises BadInput if its head computes in another way than ours.
    """
    path, found = fields.read_config_json(folder)
    name = (found.get("architectures") or [""])[0]
    tasks = [task for task, kind in TASKS.items() if kind.export.architecture == name]
    if not tasks or (tasks == ["embeddings"] and "modules.json" not in files.listing(folder)):
        return {}
    labels = found.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not all(key.isdecimal() and isinstance(x, str) for key, x in labels.items()):
        raise BadInput(f"{path}: id2label={str(labels)[:60]!r} does not name the label of each number")
    names_of = [labels[key] for key in sorted(labels, key=int)]
    # Classification and regression are one class there.
    regression = len(tasks) == 2 and (found.get("problem_type") == "regression" or len(names_of) == 1)
    task = "regression" if regression else tasks[0]
    if other := [key for key, value in fields.SUMMARY.items() if found.get(key, value) != value]:
        raise BadInput(f"{path}: {other[0]}={found[other[0]]!r}; here it is {fields.SUMMARY[other[0]]!r}")
    pooling = {}
    if task == "embeddings":
        pooling = files.read_json_object(os.path.join(folder, "1_Pooling", "config.json"))
    length = files.read_json_object(os.path.join(folder, "tokenizer_config.json")).get("model_max_length")
    return {
        "finetune": {
            "task": task,
            "labels": ",".join(names_of) if "labels" in TASKS[task].options else "",
            "beam": found.get("start_n_top", NO_TASK.beam),
            "pooling": "cls" if pooling.get("pooling_mode_lasttoken") else "mean",
        },
        # int(1e30) is how transformers writes that there is no limit.
        "data": {"segment_len": length} if isinstance(length, int) and length < int(1e30) else {},
    }


@contextlib.contextmanager
def open_weights(folder: str) -> Iterator[names.Arrays]:
    """The arrays of the folder's safetensors, one file or several. Raises BadInput."""
    listed = files.listing(folder)
    if _INDEX in listed:
        index = files.read_json_object(os.path.join(folder, _INDEX)).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise BadInput(f"{folder}/{_INDEX}: its weight_map does not name the file of each array")
        shards = sorted(set(index.values()))
    else:
        shards = [_WEIGHTS]
    if missing := [name for name in shards if name not in listed]:
        raise BadInput(f"{folder} has no {', '.join(missing)}; save the model in safetensors")
    with contextlib.ExitStack() as stack:
        paths: dict[str, str] = {}
        forms: dict[str, jax.ShapeDtypeStruct] = {}
        for shard in shards:
            path = stack.enter_context(files.local_copy(os.path.join(folder, shard)))
            try:
                with safe_open(path, "numpy") as file:
                    here = {name: _form(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, KeyError) as error:
                raise BadInput(f"{folder}/{shard}: not a safetensors file ({error}); copy it again") from error
            paths |= dict.fromkeys(here, path)
            forms |= here

        def read(name: str) -> np.ndarray:
            # Opened each time: an open file keeps what was read in memory.
            with safe_open(paths[name], "numpy") as file:
                return file.get_tensor(name)

        yield _without_tied(_with_prefix(names.Arrays(folder, forms, read)))


def _form(stored: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array in a file. BF16 is a dtype that numpy lacks; all but float32 are refused anyway."""
    dtypes = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
    return jax.ShapeDtypeStruct(stored.get_shape(), np.dtype(dtypes.get(stored.get_dtype(), "uint8")))


def _with_prefix(arrays: names.Arrays) -> names.Arrays:
    """A bare `XLNetModel` is saved without `transformer.` before its names."""
    if "word_embedding.weight" not in arrays.forms:
        return arrays
    forms = {f"transformer.{name}": form for name, form in arrays.forms.items()}
    return names.Arrays(arrays.where, forms, lambda name: arrays.read(name.removeprefix("transformer.")))


def _without_tied(arrays: names.Arrays) -> names.Arrays:
    """Leaves out a copy of the word embedding. Raises BadInput if it is no copy."""
    if _TIED not in arrays.forms:
        return arrays
    embedding = names.HUGGINGFACE[0].theirs
    if embedding in arrays.forms and not np.array_equal(arrays.read(_TIED), arrays.read(embedding)):
        raise BadInput(f"{arrays.where}: {_TIED} is not the word embedding; only tied ones can be imported")
    return arrays._replace(forms={name: form for name, form in arrays.forms.items() if name != _TIED})


@contextlib.contextmanager
def open_tokenizer(folder: str, model_file: str | None = None) -> Iterator[Tokenizer]:
    """The tokenizer of a folder: its spiece.model or `model_file`, or one made from its tokenizer.json.

    Raises BadInput if there is none.
    """
    listed, path = files.listing(folder), os.path.join(folder, "tokenizer_config.json")
    rules = files.read_json_object(path) if "tokenizer_config.json" in listed else {}
    files.check_types(rules, _RULES, path)
    normalization = Normalization(
        lower=bool(rules.get("do_lower_case", False)),
        keep_accents=bool(rules.get("keep_accents", False)),
        remove_space=bool(rules.get("remove_space", True)),
        nfkc=bool(rules.get("nfkc", False)),
    )
    if model_file or "spiece.model" in listed:
        yield Tokenizer(model_file or os.path.join(folder, "spiece.model"), normalization)
    elif "tokenizer.json" in listed:
        document = files.read_json_object(os.path.join(folder, "tokenizer.json"))
        with tempfile.TemporaryDirectory() as place:
            made = os.path.join(place, "spiece.model")
            files.write(made, tokenizer_json.sentencepiece_model(document, f"{folder}/tokenizer.json"))
            yield Tokenizer(made, normalization)
    else:
        raise BadInput(f"{folder} has neither spiece.model nor tokenizer.json; name one with --tokenizer=spiece.model")
