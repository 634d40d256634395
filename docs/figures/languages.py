"""One text in fifteen languages: its characters, and its tokens by one tokenizer, from
languages.json.

`python benchmarks/languages.py --json > docs/figures/languages.json` makes the figures.
"""

import json
import pathlib

from _svg import DARK, GREY, LIGHT, picture, word

LEFT, TOP, WIDTH, ROW = 70, 34, 330, 18


def draw() -> str:
    """The figure."""
    rows = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    most = max(row["characters"] for row in rows.values())
    across = (LEFT + WIDTH + 60, LEFT + WIDTH + 160)
    heads = ("tokens per", "character"), ("unknown to", "English pieces")
    parts = [word(LEFT, 24, "wide: characters of the same text; thin: its tokens", "start")]
    parts += [
        word(x, y, line, "end")
        for x, lines in zip(across, heads, strict=True)
        for y, line in zip((11, 24), lines, strict=True)
    ]
    for number, (language, row) in enumerate(rows.items()):
        y = TOP + ROW * number
        parts.append(word(LEFT - 6, y + 11, language, "end"))
        for name, height, fill in (("characters", 12, LIGHT), ("tokens", 6, DARK)):
            parts.append(
                f'<rect x="{LEFT}" y="{y + 7 - height / 2:g}" '
                f'width="{WIDTH * row[name] / most:.1f}" height="{height}" fill="{fill}"/>'
            )
        parts.append(word(across[0], y + 11, f"{row['tokens'] / row['characters']:.2f}", "end"))
        parts.append(word(across[1], y + 11, f"{row['unknown']:.0%}", "end"))
    parts.append(f'<path d="M{LEFT} {TOP - 2}v{ROW * len(rows)}" stroke="{GREY}"/>')
    return picture(across[1] + 10, TOP + ROW * len(rows) + 4, parts)
