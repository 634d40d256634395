"""A data set that TFDS has built, found by name and read without TensorFlow."""

import json
import os
import pathlib
import shutil
import sys

import data_fixtures as data
import fake_gcs
import numpy as np
import pytest
import tensorflow_datasets as tfds

from xlnet_jax.cli import main
from xlnet_jax.data.corpus.corpus import Corpus
from xlnet_jax.data.prepare.sources import Part, find_sources, plan
from xlnet_jax.data.prepare.text import Request, TextReader
from xlnet_jax.data.tokenizer import Normalization
from xlnet_jax.errors import BadInput

COUNT = 150  # examples of the split `train`, more than are read at once


def _text(number):
    return f"Title {number}\n\nFirst line of {number}.\nSecond line.\n\nLast paragraph é."


def _document(number):
    return [
        [f"Title {number}"],
        [f"First line of {number}.", "Second line."],
        ["Last paragraph e."],
    ]


class XlnetArticles(tfds.core.GeneratorBasedBuilder):
    """Articles. Here and not in a function, because TFDS finds a builder's module by its name."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"text": tfds.features.Text(), "number": tfds.features.Scalar(np.int64)}
        features["words"] = tfds.features.Sequence(tfds.features.Text())
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(0, COUNT),
            "validation": self._generate_examples(COUNT, COUNT + 3),
        }

    def _generate_examples(self, start, end):
        for number in range(start, end):
            yield number, {"text": _text(number), "number": number, "words": ["a", "b"]}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tfds"))
    builder = XlnetArticles(data_dir=folder, file_format="array_record")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    return folder


def _reader(field="text"):
    return TextReader(Request("blank_line", "line", Normalization(), 0.0, "strict", 64, field))


def _copy(data_dir, to):
    shutil.copytree(os.path.join(data_dir, "xlnet_articles", "1.0.0"), to)
    return pathlib.Path(to)


@pytest.mark.parametrize(
    ("name", "split", "numbers"),
    [
        ("tfds:xlnet_articles", "train", range(COUNT)),
        ("tfds:xlnet_articles:validation", "validation", range(COUNT, COUNT + 3)),
        ("tfds:xlnet_articles:1.0.0", "train", range(COUNT)),
        ("tfds:xlnet_articles:1.0.0:validation", "validation", range(COUNT, COUNT + 3)),
    ],
)
def test_by_name(data_dir, name, split, numbers):
    (source,) = find_sources([name], data_dir)
    folder = f"{data_dir}/xlnet_articles/1.0.0"
    assert source.path == f"tfds:{folder}:{split}" and source.bytes > 100
    assert source.mtime_ns == os.stat(f"{folder}/dataset_info.json").st_mtime_ns
    # A source is enough: no data_dir any more, and it may be named itself.
    assert find_sources([source.path]) == [source]
    reader = _reader()
    ((part,),) = plan([source], 10**9, "blank_line")
    assert part == Part(source.path, 0, len(numbers))
    assert list(reader.documents(part)) == list(map(_document, numbers))
    assert [each["sha256"] for each in reader.read] == [reader.digest(part)]
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("body", "no field 'body', but 'number', 'text', 'words'; .*--field"),
        ("number", "field 'number' is not one text; .*--field"),
        ("words", "field 'words' is not one text; .*--field"),
    ],
)
def test_fields(data_dir, field, said):
    ((part,),) = plan(find_sources(["tfds:xlnet_articles:validation"], data_dir), 10**9, "line")
    with pytest.raises(BadInput, match=f"example 0: {said}"):
        next(_reader(field).documents(part))


def test_configs_and_versions(data_dir, tmp_path):
    for place in ("1.0.0", "10.0.0", "9.0.0", "11.0.0.incompleteABC"):
        _copy(data_dir, tmp_path / "plain" / place)
    (source,) = find_sources(["tfds:plain:validation"], str(tmp_path))
    assert source.path == f"tfds:{tmp_path}/plain/10.0.0:validation"
    with pytest.raises(
        BadInput, match=r"version 2.0.0 is not built in .*/plain, only 1.0.0, 9.0.0, 10.0.0"
    ):
        find_sources(["tfds:plain:2.0.0"], str(tmp_path))
    _copy(data_dir, tmp_path / "wiki" / "20230601.en" / "1.0.0")
    (source,) = find_sources(["tfds:wiki/20230601.en"], str(tmp_path))
    assert source.path == f"tfds:{tmp_path}/wiki/20230601.en/1.0.0:train"
    _copy(data_dir, tmp_path / "wiki" / "20230601.de" / "1.0.0")
    with pytest.raises(BadInput, match=r"tfds:wiki is built as 20230601.de, 20230601.en; name one"):
        find_sources(["tfds:wiki"], str(tmp_path))


def test_not_built(tmp_path):
    command = f"`tfds build glue/cola --file_format=array_record --data_dir={tmp_path}`"
    with pytest.raises(BadInput, match=rf"glue/cola is not built in .*{command}"):
        find_sources(["tfds:glue/cola"], str(tmp_path))
    with pytest.raises(BadInput, match="no data set that TFDS can read"):
        find_sources([f"tfds:{tmp_path}"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tfds:xlnet_articles:test", " has no split 'test', only train, validation"),
        ("tfds:xlnet_articles:train[2]", r"no split 'train\[.*', only train, validation"),
        ("tfds:", "is not tfds:NAME"),
    ],
)
def test_bad_names(data_dir, name, said):
    with pytest.raises(BadInput, match=said):
        find_sources([name], data_dir)


def test_other_formats_are_refused(data_dir, tmp_path):
    folder = _copy(data_dir, tmp_path / "old" / "1.0.0")
    info = json.loads((folder / "dataset_info.json").read_text())
    other = info | {"fileFormat": "tfrecord"}
    (folder / "dataset_info.json").write_text(json.dumps(other))
    said = rf"{folder} is written as tfrecord; .* `tfds build --file_format=array_record`"
    with pytest.raises(BadInput, match=said):
        find_sources(["tfds:old"], str(tmp_path))
    # What a conversion leaves: both formats, side by side.
    both = other | {"alternativeFileFormats": ["array_record"]}
    (folder / "dataset_info.json").write_text(json.dumps(both))
    ((part,),) = plan(find_sources(["tfds:old:validation"], str(tmp_path)), 10**9, "line")
    assert list(_reader().documents(part)) == list(map(_document, range(COUNT, COUNT + 3)))


def test_damaged_data_sets(data_dir, tmp_path):
    folder = _copy(data_dir, tmp_path / "bad" / "1.0.0")
    ((part,),) = plan(find_sources(["tfds:bad"], str(tmp_path)), 10**9, "line")
    _, shard, _ = sorted(folder.glob("*train.array_record*"))
    whole = shard.read_bytes()
    middle = len(whole) // 2
    for damaged in (b"", whole[:middle] + bytes(200) + whole[middle + 200 :]):
        shard.write_bytes(damaged)
        with pytest.raises(BadInput, match=f"{shard.name}.*; build it again") as error:
            list(_reader().documents(part))
        assert "\n" not in str(error.value)
    shard.write_bytes(whole)
    with pytest.raises(BadInput, match="5 examples shorter than it was; start over"):
        list(_reader().documents(Part(part.path, 0, COUNT + 5)))
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(BadInput, match="no data set that TFDS can read"):
        find_sources(["tfds:bad"], str(tmp_path))


def test_the_options_of_the_command_line(data_dir, tmp_path):
    words = [
        "prepare",
        "--tfds=xlnet_articles:validation",
        f"--data_dir={data_dir}",
        f"--output={tmp_path}/c",
        "--field=text",
        "--workers=1",
        "--heldout=0",
        f"--tokenizer={data.tokenizer_path()}",
    ]
    assert main(words) == 0
    assert Corpus(f"{tmp_path}/c").manifest["splits"]["train"]["documents"] == 3


def test_in_a_bucket(data_dir):
    with fake_gcs.serve() as server:
        for path in pathlib.Path(data_dir).rglob("*"):
            if path.is_file():
                server.objects[f"bucket/tfds/{path.relative_to(data_dir)}"] = path.read_bytes()
        (source,) = find_sources(["tfds:xlnet_articles"], "gs://bucket/tfds/")
        assert source.path == "tfds:gs://bucket/tfds/xlnet_articles/1.0.0:train"
        reader = _reader()
        parts = [part for unit in plan([source], 5000, "file") for part in unit]
        documents = [document for part in parts for document in reader.documents(part)]
        assert documents == list(map(_document, range(COUNT))) and len(parts) > 2
        # Not one request per example.
        assert sum("array_record" in path for _, path, _ in server.requests) < COUNT / 5
        with pytest.raises(BadInput, match="not built in gs://bucket/none"):
            find_sources(["tfds:xlnet_articles"], "gs://bucket/none")
