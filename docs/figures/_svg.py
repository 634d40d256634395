"""SVG as text, readable on white and on black: no background, middle grey for words. Equal figures
give equal bytes.
"""

import html

GREY, FAINT, LIGHT, MIDDLE, DARK = "#7d8792", "#7d879233", "#2f7fc84d", "#7fb0df", "#1f6cb0"
"""Words and lines; see-through: known words, seen positions; earlier answers; what predicts."""


def cell(x: float, y: float, width: float, height: float, fill: str = "none") -> str:
    """A box with a thin border."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" '
        f'stroke="{GREY}" stroke-width="0.5"/>'
    )


def word(
    x: float, y: float, text: object, anchor: str = "middle", fill: str = GREY, more: str = ""
) -> str:
    """A word with its baseline at y; `more` is further attributes."""
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" '
        f'fill="{fill}"{more}>{html.escape(str(text))}</text>'
    )


def inside(
    x: float, y: float, width: float, height: float, fill: str, text: object, more: str = ""
) -> list[str]:
    """A box and the word in it."""
    ink = GREY if fill in ("none", FAINT, LIGHT) else "white" if fill == DARK else "#14283c"
    return [
        cell(x, y, width, height, fill),
        word(x + width / 2, y + height / 2 + 4, text, fill=ink, more=more),
    ]


def upright(x: float, y: float, text: object, more: str = "") -> str:
    """A word that reads downwards from (x, y), for a column."""
    return word(0, 0, text, "start", more=f' transform="translate({x:g} {y:g}) rotate(90)"{more}')


def picture(width: float, height: float, parts: list[str]) -> str:
    """The file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="11">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"
