"""The manifest of a corpus: what the folder holds, how it was made, every hash. Written last: it means "finished"."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from etils import epath

from xlnet_jax.data.pages import features
from xlnet_jax.errors import BadInput

FORMAT_VERSION = 1
DATASET_NAME = "corpus"
MANIFEST = "manifest.json"
REQUEST = "prepare.json"
TOKENIZER = "spiece.model"


def shard_name(split: str, index: int, count: int) -> str:
    """File name of a shard, by the template of TFDS."""
    return f"{DATASET_NAME}-{split}.array_record-{index:05d}-of-{count:05d}"


def counts_name(split: str) -> str:
    """File name of the token counts of a split."""
    return f"token_counts-{split}.npy"


def content_hash(manifest: dict[str, Any]) -> str:
    """SHA-256 of what is read from a corpus: the vocabulary, and the tokens and starts of every shard in order.

    It does not depend on the page size, on compression, or on where the corpus lies.
    """
    content = [manifest["tokenizer"]["sha256"]]
    content += [[name, [shard["content"] for shard in split["shards"]]] for name, split in manifest["splits"].items()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def write_tfds_metadata(path: str, manifest: dict[str, Any]) -> None:
    """Writes what lets TFDS open the folder: `tfds.builder_from_directory(path).as_data_source("train")`."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(path), dataset_name=DATASET_NAME, filetype_suffix="array_record"
    )
    tfds.folder_dataset.write_metadata(
        data_dir=path,
        features=features(manifest["page_tokens"]),
        split_infos=[
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=[shard["pages"] for shard in split["shards"]],
                num_bytes=sum(shard["bytes"] for shard in split["shards"]),
                filename_template=template.replace(split=name),
            )
            for name, split in manifest["splits"].items()
        ],
        version=f"{FORMAT_VERSION}.0.0",
        check_data=False,  # its check needs TensorFlow
    )


def read_manifest(path: str) -> dict[str, Any]:
    """The manifest of a finished corpus. Raises BadInput if there is none, or not one of this format."""
    folder = epath.Path(path)
    try:
        if not folder.is_dir():
            raise BadInput(f"corpus {path}: no such folder; make one with `xlnet-jax prepare`")
        if not (folder / MANIFEST).exists():
            if (folder / REQUEST).exists():
                raise BadInput(f"corpus {path} is not finished; give the same `xlnet-jax prepare` again, it goes on")
            raise BadInput(f"{path} is not a corpus: it has no {MANIFEST}; make one with `xlnet-jax prepare`")
        manifest = json.loads((folder / MANIFEST).read_text())
        version = manifest["format_version"]
        if version != FORMAT_VERSION:
            raise BadInput(f"corpus {path} has format {version}, this program reads {FORMAT_VERSION}; prepare it again")
        if content_hash(manifest) != manifest["sha256"]:
            raise BadInput(f"{folder / MANIFEST} was changed: it does not add up to its own sha256; copy it again")
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{folder / MANIFEST} is damaged ({error!r}); copy the corpus again") from error
    except ImportError as error:
        raise BadInput(f"corpus {path}: {error}") from error
    return manifest
