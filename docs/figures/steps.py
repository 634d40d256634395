"""Steps and rows, coloured by block: what `Stream` gives for the 26 tokens of the page; from step 6
on four rows.
"""

import numpy as np
from _svg import inside, picture, word

from xlnet_jax.data.batches.stream import ShuffledBlocks, Stream, extend_plan

W, STEPS, CHANGE = 3, 12, 6
CELL, LEFT, TOP = 54, 46, 24
COLORS = ["#7fb0df", "#e0a667", "#8cc48c", "#c79ad0"]


def draw() -> str:
    """The figure."""
    stream = Stream(
        (ShuffledBlocks(tokens=26, window=2, windows_per_block=W, seed=1),), bidirectional=True
    )
    plan = extend_plan(extend_plan((), 0, 2, W), CHANGE, 4, W)
    parts = [word(LEFT + CELL * (step + 0.5), TOP - 8, f"step {step}") for step in range(STEPS)]
    parts += [word(LEFT - 8, TOP + row * 40 + 22, f"row {row}", "end") for row in range(4)]
    for step in range(STEPS):
        found = stream.locate(step, np.arange(2 if step < CHANGE else 4), plan)
        for row, (cursor, turn, block) in enumerate(
            zip(found.cursor_B, found.direction_B, found.block_B, strict=True)
        ):
            x, y = LEFT + CELL * step, TOP + row * 40
            parts += inside(x, y, CELL, 34, COLORS[block], f"{cursor}, {cursor + turn}")
            if not found.continues_B[row]:
                parts.append(
                    word(x + 3, y + 9, f"block {block}", "start", "#14283c", ' font-size="8"')
                )
    return picture(LEFT + CELL * STEPS + 2, TOP + 4 * 40, parts)
