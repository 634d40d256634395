"""The loss of a quick start by step, from quickstart.json.

`python docs/figures/quickstart.py runs/quickstart/run > docs/figures/quickstart.json` after `make
quickstart`.
"""

import json
import pathlib
import sys

from _svg import DARK, GREY, picture, word

LEFT, TOP, WIDTH, HEIGHT = 40, 20, 560, 190
EVERY = 10
"""Steps of which a point is the mean."""


def read(run: pathlib.Path) -> dict:
    """What the figure needs of a run."""
    lines, ends, starts = (
        [json.loads(line) for line in (run / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("metrics", "evaluations", "runs")
    )
    losses = [line["loss"] for line in lines]
    means = [round(sum(losses[n : n + EVERY]) / EVERY, 3) for n in range(0, len(losses), EVERY)]
    end = {name: round(ends[-1][name], 3) for name in ("heldout_loss", "unigram_cross_entropy")}
    return {"losses": means, "resumed": [line["step"] for line in starts[1:]], **end}


def draw() -> str:
    """The figure."""
    found = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    losses, steps = found["losses"], EVERY * len(found["losses"])
    low, high = min(losses) - 0.1, max(losses)

    def x(step: float) -> float:
        return LEFT + WIDTH * step / steps

    def y(loss: float) -> float:
        return TOP + HEIGHT * (high - loss) / (high - low)

    at = "L".join(f"{x(EVERY * (n + 0.5)):.1f} {y(loss):.1f}" for n, loss in enumerate(losses))
    parts = [word(LEFT, 12, "training loss by step, nats per target", "start")]
    for name, text in (
        ("unigram_cross_entropy", "piece frequencies alone"),
        ("heldout_loss", "held-out, at the end"),
    ):
        level = y(found[name])
        parts.append(
            f'<path d="M{LEFT} {level:.1f}h{WIDTH}" stroke="{GREY}" stroke-dasharray="4"/>'
        )
        side, place = ("end", LEFT + WIDTH) if found[name] > 5 else ("start", LEFT + 6)
        parts.append(word(place, level - 5, f"{text}: {found[name]:.2f}", side))
    for step in found["resumed"]:
        parts.append(
            f'<path d="M{x(step):.1f} {TOP}v{HEIGHT}" stroke="{GREY}" stroke-dasharray="2"/>'
        )
        parts.append(word(x(step) + 4, TOP + 12, f"stopped at {step}, and resumed", "start"))
    parts.append(f'<path d="M{at}" fill="none" stroke="{DARK}" stroke-width="1.5"/>')
    parts.append(f'<path d="M{LEFT} {TOP}v{HEIGHT}h{WIDTH}" fill="none" stroke="{GREY}"/>')
    parts += [word(x(step), TOP + HEIGHT + 16, step) for step in range(0, steps + 1, 200)]
    parts += [word(LEFT - 6, y(loss) + 4, loss, "end") for loss in range(3, 9) if low < loss < high]
    return picture(LEFT + WIDTH + 20, TOP + HEIGHT + 24, parts)


if __name__ == "__main__":
    print(json.dumps(read(pathlib.Path(sys.argv[1]))))
