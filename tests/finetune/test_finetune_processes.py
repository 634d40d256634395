"""Fine-tuning in processes of its own: killed at a random moment, and on two hosts."""

import json
import os
import random
import signal
import time

import data_fixtures
import pytest
from hosts import Hosts
from test_finetune import fingerprint
from tiny import TESTS


def start(workdir, cache, examples, count=1):
    return Hosts(
        "finetune", workdir, f"--config={TESTS}/tiny_config.py", "--config.finetune.task=classification",
        f"--config.finetune.tokenizer={data_fixtures.corpus_path()}/spiece.model", "--config.data.segment_len=16",
        f"--config.finetune.train={examples['train']}", f"--config.finetune.dev={examples['dev']}",
        "--config.train.steps=16", "--config.evaluation.every=4", "--config.evaluation.final=True",
        "--config.optimizer.learning_rate=0.005", count=count, cache=cache,
    )  # fmt: skip


@pytest.mark.slow
def test_killed_at_a_random_moment_it_ends_with_the_same_bits_and_two_hosts_agree(tmp_path, examples):
    cache, (whole, killed, two) = tmp_path / "cache", (tmp_path / name for name in ("whole", "killed", "two"))
    result = json.loads(start(whole, cache, examples).finish()[0][0])
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    hosts = start(killed, cache, examples)
    after = draw.choice((4, 8, 12))
    while hosts.processes[0].poll() is None and not (killed / "checkpoints" / str(after)).exists():
        time.sleep(0.005)
    time.sleep(draw.uniform(0, 0.2))
    hosts.processes[0].send_signal(signal.SIGKILL)
    hosts.processes[0].communicate()
    again = json.loads(start(killed, cache, examples).finish()[0][0])
    assert again == result | {"workdir": str(killed)}, f"seed {seed}"
    assert fingerprint(killed) == fingerprint(whole), f"seed {seed}"

    outs = start(two, cache, examples, count=2).finish()
    assert all(json.loads(out)["scores"] == result["scores"] for out, _ in outs.values())
    one, other = (fingerprint(folder)[3] for folder in (whole, two))
    assert [line["loss"] for line in other] == pytest.approx([line["loss"] for line in one], abs=1e-4)
    assert os.path.exists(two / "predictions.jsonl")
