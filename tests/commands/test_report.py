"""`report`: its page from the files of a run, whole or damaged, on disk and in a bucket; and what
it refuses.
"""

import json
import pathlib
import re
import shutil
import xml.etree.ElementTree

import numpy as np
import pytest
import tiny

from xlnet_jax.cli import main
from xlnet_jax.comparison import report as pages
from xlnet_jax.comparison.page import chart
from xlnet_jax.run import goodput, metrics
from xlnet_jax.storage import files

SECONDS = {"device": 6.0, "host": 2.0, "compile": 1.0, "restarts": 1.0}
SAMPLES = {
    "samples": [{"parts": ["the <b>", " of the"], "truth": [" state"], "filled": [" end & law"]}]
}


def write(workdir, **changes):
    """The files of a run of 1000 steps that was lost and stopped, at its step 900."""
    config = tiny.config(train={"steps": 1000}, evaluation={"every": 500}, **changes)
    tiny.save_run(workdir, config, {"w": np.zeros(2, np.float32)})
    lines = [
        {
            "step": step,
            "loss": 8 - step / 200,
            "learning_rate": 1e-3 * step,
            "grad_norm": None,
            "tokens_per_second": 2e4 if step < 900 else 9e9,
        }
        for step in range(1, 901)
    ]
    started = {
        "time": "2026-01-01T00:00:00Z",
        "devices": 4,
        "device_kind": "TPU <v9>",
        "git_commit": "1" * 40 + "+",
    }
    last = {
        "step": 900,
        "time": 9.0,
        "ended": False,
        "stopped": True,
        "seconds": SECONDS,
        "memory": {"host": 2**30},
    }
    written = {
        "metrics": lines,
        "time": [{**last, "step": 500, "stopped": False}, last],
        "evaluations": [{"step": 500, "heldout_loss": 5.25, "heldout_share": 0.125}],
        "runs": [
            {"step": 0, **started},
            {"step": 500, "before": "lost", "repeated": 37, **started},
        ],
        "samples": [{"step": 500, **SAMPLES}],
    }
    for name, each in written.items():
        in_parts = name != "runs" and not files.at(workdir).appends
        path = f"{name}/{1:012d}" if in_parts else name
        files.write(f"{workdir}/{path}.jsonl", b"".join(map(metrics.to_line, each)))


def page_of(path):
    """A page that loads nothing and is well formed."""
    page = pathlib.Path(path).read_text()
    assert not re.search(r"<script|<link[^>]*href=\"(?!data:,)|src=|url\(|@import|https?://", page)
    xml.etree.ElementTree.fromstring(page[page.index("<body>") : page.index("</html>")])
    return page


def cells(page, first):
    """Those of the row that begins with it."""
    row = re.search(rf"<tr><th>{re.escape(first)}</th>(.*?)</tr>", page)
    return re.findall(r"<td>(.*?)</td>", row[1]) if row else None


def test_the_page_of_two_runs_has_all_that_they_tell_and_loads_nothing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write("a/run")
    write("b/run", optimizer={"learning_rate": 3e-4})
    assert main(["report", "a/run", "b/run/", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["page"] == "report.html" and [*result["runs"]] == ["a/run", "b/run"]
    run = result["runs"]["a/run"]
    assert (run["state"], run["step"], run["steps"], run["loss"]) == ("signal", 900, 1000, 3.5)
    assert (run["heldout_loss"], run["goodput"], run["tokens_per_second"]) == (5.25, 0.8, 2e4)

    page = page_of(tmp_path / "report.html")
    assert " ".join(cells(page, "a/run")[:7]) == "900 1,000 stopped by a signal 3.5 5.25 12.5% -"
    assert page.count("<polyline") == 2 * 4 and page.count("stroke-dasharray") == 2, (
        "of the norm there is no number"
    )
    assert "9,000,000,000" not in page and "1,024 MiB" in page
    again = re.findall(r"<td>killed, or failed</td><td>(.*?)</td>", page)
    assert again == ["37", "37"] and "4 x TPU &lt;v9&gt;" in page and "111111111111+" in page
    assert "the &lt;b&gt; <mark>end &amp; law</mark>" in page
    differing = page[page.index("Where they differ") : page.index("Keys that are not")]
    assert differing.count("<tr>") == 2
    assert cells(differing, "optimizer.learning_rate") == ["0.01", "0.0003"]
    assert cells(page[page.index("Keys that are not") :], "train.steps") == ["1000", "1000"]
    assert main(["report", "a/run"]) == 0
    assert "stopped by a signal, step 900 of 1,000, loss 3.5\n" in capsys.readouterr().out


def _predicted(gold, label, p, number):
    other = {"no": "yes", "yes": "no"}[label]
    return {
        "where": f"dev.tsv, row {number}",
        "texts": [f"text <{number}>", "b"],
        "gold": gold,
        "label": label,
        "scores": {label: p, other: 1 - p},
    }


def test_the_page_of_a_task_has_its_score_its_confusions_and_its_surest_errors(tmp_path, capsys):
    """The fault: errors in the order of the file, or all examples."""
    run = str(tmp_path / "lone")
    write(
        run,
        finetune={"task": "classification", "labels": "no,yes", "train": "a.tsv", "dev": "dev.tsv"},
    )
    scores = [
        {"step": 400, "score": 0.5, "accuracy": 0.5},
        {"step": 800, "score": 0.75, "accuracy": 0.75},
    ]
    lines = [_predicted("no", "no", 0.99, 1), _predicted("yes", "yes", 0.9, 2)]
    lines += [_predicted("no", "yes", 0.5 + number / 100, number) for number in range(3, 28)]
    lines.append(_predicted("yes", "no", 0.97, 28))
    for name, each in (("evaluations", scores), ("predictions", lines)):
        (tmp_path / "lone" / f"{name}.jsonl").write_bytes(b"".join(map(metrics.to_line, each)))
    words = ["report", run, f"--output={tmp_path}/page.html"]
    assert main(words) == 0
    assert "loss 3.5, accuracy 0.75" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["runs"]["lone"]
    assert (told["metric"], told["score"]) == ("accuracy", 0.75)
    page = page_of(tmp_path / "page.html")
    assert "accuracy 0.75" in cells(page, "lone")
    part = page[page.index("Errors on the dev set") : page.index("<h2>Checkpoints")]
    assert (cells(part, "no"), cells(part, "yes")) == (["1", "25"], ["1", "1"])
    rows = re.findall(r"<th>dev.tsv, row (\d+)</th>", part)
    assert rows == ["28", *map(str, range(27, 8, -1))]
    assert cells(part, "dev.tsv, row 28") == ["yes", "no", "0.97", "text &lt;28&gt; | b"]


@pytest.mark.parametrize(
    ("task", "line", "row"),
    [
        ("multiple_choice", {"gold": "B", "label": "A", "scores": [0.8, 0.2]}, ["1", "0"]),
        ("token_classification", {"gold": ["O", "B"], "labels": ["O", "O"]}, None),
    ],
)
def test_confusions_of_other_tasks(tmp_path, task, line, row):
    run = str(tmp_path / "lone")
    labels = {"labels": "B,O"} if task == "token_classification" else {}
    write(run, finetune={"task": task, "train": "a", "dev": "b", **labels})
    line = {"where": "b, row 1", "texts": ["a"], **line}
    (tmp_path / "lone" / "predictions.jsonl").write_bytes(metrics.to_line(line))
    assert main(["report", run, f"--output={tmp_path}/page.html"]) == 0
    assert cells(page_of(tmp_path / "page.html"), "B") == row


def test_losses_of_other_tokenizers_have_a_chart_of_their_own(tmp_path):
    for name in ("one", "two", "three"):
        write(str(tmp_path / name))
    path = tmp_path / "three/config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"tokenizer_sha256": "f" * 64}))
    words = [str(tmp_path / name) for name in ("one", "two", "three")]
    assert main(["report", *words, f"--output={tmp_path}/page.html"]) == 0
    page = page_of(tmp_path / "page.html")
    charts = re.findall(r"<figcaption>(.*?)</figcaption>(.*?)</figure>", page, re.DOTALL)
    lines = {title: picture.count("<polyline") for title, picture in charts}
    assert lines == {
        f"Loss (dashed: held-out), tokenizer {saved['tokenizer_sha256'][:8]}": 4,
        "Loss (dashed: held-out), tokenizer ffffffff": 2,
        "Learning rate": 3,
        "Tokens per second": 3,
    }


def test_a_run_that_has_just_begun_or_lost_lines_has_a_page(tmp_path, capsys):
    write(str(tmp_path / "lone"))
    path = tmp_path / "lone/metrics.jsonl"
    path.write_text(
        path.read_text().replace('{"step": 7,', '{"step": seven,') + '{"step": 901, "lo'
    )
    for name in ("time", "evaluations", "samples"):
        (tmp_path / f"lone/{name}.jsonl").unlink()
    words = ["report", str(tmp_path / "lone"), f"--output={tmp_path}/page.html"]
    assert main(words) == 0 and "line 7 is damaged and is ignored" in capsys.readouterr().err
    page = page_of(tmp_path / "page.html")
    assert cells(page, "lone")[:3] == ["900", "1,000", pages.STATES["lost"]]
    assert "Nothing has been saved yet" in page
    path.unlink()
    shutil.rmtree(tmp_path / "lone/checkpoints")
    assert main(words) == 0
    page = page_of(tmp_path / "page.html")
    assert "No step has been written yet" in page and "None is kept" in page


def test_a_run_in_a_bucket_has_a_page(tmp_path, bucket):
    write("gs://bucket/runs/one")
    assert main(["report", "gs://bucket/runs/one", f"--output={tmp_path}/page.html"]) == 0
    assert cells(page_of(tmp_path / "page.html"), "one")[0] == "900"


def test_what_is_no_run_is_refused_in_one_line(tmp_path, capsys):
    imported = tmp_path / "seed_0"
    imported.mkdir()
    tiny.save_run(str(imported), tiny.config(), {"w": np.zeros(2, np.float32)})
    for words, what in [
        ([], "name the work directory of a run"),
        (
            [str(tmp_path)],
            f"no config.json; give the --workdir of a training run, such as {imported}",
        ),
        ([str(imported)], "no runs.jsonl: no training has started here"),
    ]:
        assert main(["report", *words]) == 2
        err = capsys.readouterr().err
        assert what in err and err.count("\n") == 1


def test_how_a_start_has_ended():
    line = goodput.Goodput().line(4)
    assert line["memory"]["host"] > 2**20 and goodput.end_of(None, {}, 3) is None
    assert goodput.end_of(line, {"consecutive_bad": 2}, 3) == "lost"
    assert goodput.end_of(line | {"stopped": True}, {"consecutive_bad": None}, 3) == "signal"
    assert goodput.end_of(line | {"ended": True}, {}, 3) == "end"
    assert goodput.end_of(line, {"consecutive_bad": 3}, 3) == "diverged"


def test_a_chart_has_its_points_in_the_picture():
    picture = chart("loss", "step", [(0, np.array([[10.0, 2.0], [40.0, 1.0]]))])
    # The largest value is at the top, the last step at the right.
    assert 'points="157.5,8.0 420.0,210.0"' in picture
    lines = [{"step": step, "loss": 1.0 * step} for step in range(1, 4001)]
    assert pages.binned(lines, "loss")[0].tolist() == [10, 5.5]
