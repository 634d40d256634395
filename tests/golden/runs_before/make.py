"""What made runs.tar.xz: runs of the last commit with the old names of keys and tasks, and what it went on to compute.

    git worktree add /tmp/before/checkout c32714f
    JAX_PLATFORMS=cpu python tests/golden/runs_before/make.py /tmp/before

It needs the packages of `make install`, and the corpus beside it. Two runs, `uniform` and `tokens`, are stored at step
4, with their exports and without the model of the tokenizer, which is that of the corpus; of the others config.json.
`expected.json` has what the old program computed from there: the losses of steps 5 to 8, a held-out loss, a score.
`tests/test_runs_before.py` lets this version do the same.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import sys
import tarfile
from typing import Any

GOLDEN = pathlib.Path(__file__).resolve().parents[1]
TEXT = "Bado kilu. "
RUN = {
    "model.vocab_size": 200, "model.layers": 2, "model.d_model": 8, "model.heads": 2, "model.head_dim": 4,
    "model.d_ff": 8, "model.memory_len": 8, "model.dropout": 0.1, "model.init_std": 0.3, "optimizer.warmup_steps": 1,
    "optimizer.learning_rate": 0.01, "data.segment_len": 16, "data.reuse_len": 16, "data.num_predict": 16,
    "data.windows_per_block": 4, "train.steps": 8, "train.batch_size": 8, "train.steps_per_dispatch": 2,
    "checkpoint.every": 4, "checkpoint.keep": 1, "evaluation.every": 4, "evaluation.batch_size": 8,
    "log.tensorboard": False, "log.compilation_cache": "cache", "data.prefetch": 1, "data.read_threads": 1,
}  # fmt: skip
PRETRAINED = {
    "uniform": {
        "data.orders": "uniform", "data.mask_alpha": 5, "data.follow_probability": 0.3, "model.untie_biases": False,
        "train.accumulation": 2,
    },
    "vanilla": {
        "data.objective": "clm", "data.targets_ahead": 2, "data.bidirectional": False, "model.memory_len": 0,
        "model.position_scheme": "absolute", "model.layer_losses": True,
    },
}  # fmt: skip
WHOLE = ("uniform", "tokens")
TASKS = {"tokens": "tokens.jsonl", "spans": "spans.json", "choice": "choice.jsonl"}


def write_examples(folder: pathlib.Path) -> None:
    """Sixteen examples of each task."""
    draw = random.Random(0)
    rows: dict[str, list[Any]] = {task: [] for task in TASKS}
    for number in range(16):
        words = [draw.choice(["bame", "dono", "kira", "luve"]) for _ in range(5)]
        answer = draw.randrange(5)
        rows["tokens"].append({"tokens": words, "tags": ["B-X" if word == "kira" else "O" for word in words]})
        rows["choice"].append({"article": " ".join(words), "questions": ["kira _ ?"], "answers": ["ABC"[number % 3]],
                               "options": [["bame", "dono", "luve"]]})  # fmt: skip
        start = sum(len(word) + 1 for word in words[:answer])
        asked = {"id": str(number), "question": "kira?", "answers": [{"text": words[answer], "answer_start": start}]}
        rows["spans"].append({"context": " ".join(words), "qas": [asked]})
    for task in ("tokens", "choice"):
        (folder / TASKS[task]).write_text("".join(json.dumps(row) + "\n" for row in rows[task]))
    (folder / TASKS["spans"]).write_text(json.dumps({"data": [{"paragraphs": rows["spans"]}]}))


def main(folder: pathlib.Path) -> None:
    """Runs the old program in `folder`, and packs what it wrote."""
    os.chdir(folder)
    shutil.copytree(GOLDEN / "corpus_v1", "corpus")
    write_examples(folder)
    expected: dict[str, Any] = {}
    sys.path.insert(0, str(folder / "checkout"))
    from xlnet_jax.cli import main as xlnet_jax

    def call(*words: str) -> Any:
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())) as out:
            assert xlnet_jax([*words, "--json"]) == 0, words
            out.seek(0)
            return [json.loads(line) for line in out]

    def train(name: str, command: str, keys: dict[str, Any]) -> None:
        words = ["--config=checkout/configs/quickstart.py", *(f"--config.{key}={value}" for key, value in keys.items())]
        call(command, *words, f"--workdir={name}", "--stop_at=4")
        if name in WHOLE:
            shutil.copytree(name, f"{name}_on")
            call(command, *words, f"--workdir={name}_on")
            lines = [json.loads(line) for line in (folder / f"{name}_on" / "metrics.jsonl").read_text().splitlines()]
            expected[name] = {"keys": keys, "losses": [line["loss"] for line in lines[4:]]}
            call("export", f"--workdir={name}", "--format=huggingface", f"--output=exported/{name}")

    for name, keys in PRETRAINED.items():
        train(name, "train", {"data.corpus": "corpus", **RUN, **keys})
    for task, file in TASKS.items():
        keys = {key: value for key, value in RUN.items() if key not in ("data.reuse_len", "data.num_predict")}
        keys |= {"checkpoint.init_from": "uniform", "data.segment_len": 24, "finetune.task": task,
                 "finetune.train": file, "finetune.dev": file}  # fmt: skip
        train(task, "finetune", keys)
    expected["uniform"] |= {"evaluate": call("evaluate", "--workdir=uniform")[0],
                            "score": call("score", "--workdir=uniform", TEXT)[0]}  # fmt: skip
    pathlib.Path("expected.json").write_text(json.dumps(expected, indent=1))
    others = [f"{name}/config.json" for name in (*PRETRAINED, *TASKS) if name not in WHOLE]
    stored = [*WHOLE, *others, "tokens.jsonl", *(f"exported/{name}" for name in WHOLE), "expected.json"]
    left_out = {"spiece.model", "tokenizer.json", "time.jsonl", "README.md", "loss.png", "special_tokens_map.json"}

    def small(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return None if os.path.basename(member.name) in left_out else member

    with tarfile.open(GOLDEN / "runs_before" / "runs.tar.xz", "w:xz", preset=9) as archive:
        for name in stored:
            archive.add(name, filter=small)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
