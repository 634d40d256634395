"""Nine positions with their ranks, and who sees whom in the content stream and in the query
stream.
"""

from _svg import DARK, LIGHT, cell, picture, word

from xlnet_jax.commands.inspect import visible

KINDS = ["context", "target", "target", "context", "SEP", "context", "target", "SEP", "CLS"]
ORDER = [5, 2, 7, 0, 3, 8, 1, 6, 4]
RANK = [-1 if kind == "context" else place for kind, place in zip(KINDS, ORDER, strict=True)]
TARGETS = [position for position, kind in enumerate(KINDS) if kind == "target"]
N, CELL, LEFT, TOP = len(KINDS), 24, 104, 52


def draw() -> str:
    """The figure."""
    parts = [word(LEFT - 8, TOP - 20, "position", "end"), word(LEFT - 8, TOP - 6, "rank", "end")]
    for row, kind in enumerate(KINDS):
        parts.append(
            word(LEFT - 8, TOP + row * CELL + 16, f"{row} {kind}, rank {RANK[row]}", "end")
        )
    titles = ("content: rank[j] <= rank[i]", "query: rank[j] < rank[p]")
    for number, (title, sees_NN) in enumerate(zip(titles, visible(RANK, TARGETS), strict=True)):
        left = LEFT + number * (N * CELL + 24)
        parts.append(word(left + N * CELL / 2, 14, title))
        for column in range(N):
            parts += [
                word(left + column * CELL + 12, TOP - 20, column),
                word(left + column * CELL + 12, TOP - 6, RANK[column]),
            ]
            for row in range(N):
                fill = "none" if not sees_NN[row, column] else DARK if number else LIGHT
                parts.append(cell(left + column * CELL, TOP + row * CELL, CELL, CELL, fill))
    return picture(LEFT + 2 * N * CELL + 26, TOP + N * CELL + 4, parts)
