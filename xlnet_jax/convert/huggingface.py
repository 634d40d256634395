"""Folders of Hugging Face `transformers`: weights, configuration, tokenizer and model card, written and read.

The library itself is not needed. Its XLNet is the original graph with three differences that matter here: dense kernels
are transposed, biases are always per layer, and its "gelu" is the erf form, where the original has tanh. The
fine-tuning heads of that library load from the same folder.
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
from xlnet_jax.convert import fields, formats, names, tokenizer_json
from xlnet_jax.convert.model_card import model_card
from xlnet_jax.data.tokenizer import Normalization, Tokenizer
from xlnet_jax.errors import BadInput
from xlnet_jax.finetune.tasks import TASKS
from xlnet_jax.run import workdir as workdirs
from xlnet_jax.storage import files

NO_TASK = FinetuneConfig()

_RULES = {"do_lower_case": bool, "keep_accents": bool, "remove_space": bool, "nfkc": bool, "model_max_length": float}
"""Of the keys of tokenizer_config.json that are read."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TIED = "lm_loss.weight"


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


def export(
    params: Mapping[str, Any], config: Config, tokenizer: Tokenizer, output: str, *, card: str = "",
    shard_bytes: int = formats.SHARD_BYTES, kept: Mapping[str, Any] | None = None,
) -> list[str]:  # fmt: skip
    """Writes the folder; on disk it appears complete or not at all.

    Beside the parameters, memory is needed for the kernels of one file, which are transposed there.

    Args:
      params: the unboxed tree of `XLNet` with its head, numpy arrays.
      config: of the run. Its tokenizer there cuts a text to `data.segment_len` tokens if asked to cut.
      tokenizer: of the training run, with its normalization.
      output: a folder that does not exist yet or is empty, also `gs://`.
      card: the model card, Markdown.
      shard_bytes: the weights are split into files of at most this size, or of one array.
      kept: `fields.read_kept` of the folder that the run started from; None: it started from none.

    Returns:
      Paths of the files written, sorted.

    Raises:
      BadInput: the library cannot express the model or the tokenizer, the two do not fit each other, or the folder
        cannot be written or is not empty.
    """
    check(config)
    formats.check_output(output)
    model, task, max_length = config.model, config.finetune, config.data.segment_len
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
        fields.OWN: fields.own(config),
    }
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


def write(trained: formats.Trained, output: str, shard_bytes: int) -> None:
    """The run's export, with its losses in the model card."""
    _, config, tokenizer, params, step = trained
    lines = {
        "training": workdirs.line_of(trained.workdir, "metrics", step).get("loss"),
        "held-out": workdirs.heldout_loss(workdirs.line_of(trained.workdir, "evaluations", step)),
    }
    losses = {name: loss for name, loss in lines.items() if isinstance(loss, float)}
    card = model_card(config, step, workdirs.read_config(trained.workdir) or {}, losses)
    kept = workdirs.source_config(trained.workdir)
    export(params, config, tokenizer, output, card=card, shard_bytes=shard_bytes, kept=kept)


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

        yield _as_exported(names.Arrays(folder, forms, read))


def _form(stored: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array in a file. BF16 is a dtype that numpy lacks; all but float32 are refused anyway."""
    dtypes = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
    return jax.ShapeDtypeStruct(stored.get_shape(), np.dtype(dtypes.get(stored.get_dtype(), "uint8")))


def _as_exported(arrays: names.Arrays) -> names.Arrays:
    """With `transformer.` before the names, which a bare `XLNetModel` lacks, and without a copy of the word embedding.

    Raises BadInput if it is no copy.
    """
    embedding, prefix = names.HUGGINGFACE[0].theirs, "transformer." * ("word_embedding.weight" in arrays.forms)
    forms = {f"{prefix}{name}": form for name, form in arrays.forms.items()}
    arrays = names.Arrays(arrays.where, forms, lambda name, read=arrays.read: read(name.removeprefix(prefix)))
    tied = forms.pop(_TIED, None)
    if tied and embedding in forms and not np.array_equal(arrays.read(_TIED), arrays.read(embedding)):
        raise BadInput(f"{arrays.where}: {_TIED} is not the word embedding; only tied ones can be imported")
    return arrays


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


def recognise(path: str, listed: Collection[str]) -> bool:
    """Whether a folder is one; a work directory has a config.json as well."""
    return "config.json" in listed and "checkpoints/" not in listed


@contextlib.contextmanager
def read(path: str, tokenizer: str | None, overrides: Sequence[str]) -> Iterator[formats.Source]:
    """Where the files disagree, config.json is right."""
    sections = (fields.read_lengths(path), fields.read_own(path), {"model": read_model(path)}, read_task(path))
    config, assumed = formats.configured(path, formats.merged(*sections), overrides)
    convert = functools.partial(names.from_foreign, names.of_huggingface(config.finetune.task))
    with contextlib.ExitStack() as stack:
        own = formats.checked(stack.enter_context(open_tokenizer(path, tokenizer)), config, path)
        opened = path, "huggingface", config, own, stack.enter_context(open_weights(path)), convert, assumed
        yield formats.Source(*opened, *fields.read_kept(path, config))
