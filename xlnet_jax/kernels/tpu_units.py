"""Work of a program of the fused attention on TPU: plan, inputs and units. A unit is one head of a
strip of queries.

Formulas: `packing`. A program handles groups of 128 lanes of the model width. A group is 128 / E
heads; their queries, keys and values have the layout of the projections. The program goes through
its queries in strips, head by head, and through its keys in parts of 128: an array of 128 queries
by 128 keys is 16 registers.

Products. The matrix unit takes one row of the left factor per cycle, 128 wide. To contract a head,
one factor has zeros in the lanes of the other heads. If the result has the head's elements as an
axis, they are the rows of the left factor, which is transposed: so a head of 64 costs 64 cycles,
and the large factor, [queries, keys], is never transposed.

Scores are in units of ln 2, so that the exponential is a power of 2: a, b and c include the factor
scale / ln 2. The gradient of a score includes ln 2, so that the products with a, b and c need no
factor.

Letters: Q queries of a strip, K keys of the block, L = 128 lanes, S positions of a window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from xlnet_jax.kernels import packing
from xlnet_jax.kernels.dropout import advance, keep

LANES, SUBLANES = 128, 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuPlan(packing.Plan):
    """Static sizes and options of a call, after padding."""

    head_dim: int
    """E: 32, 64 or 128."""
    scale: float
    """E^(-1/2) of the E before padding."""
    groups: int
    """Groups of 128 lanes in a program."""
    table_rows: int
    """N: rows of the position keys."""
    query_block: int
    key_block: int
    window: int
    """S, a power of 2; for queries in order at least the strip."""
    strip: int
    """Queries of a unit."""
    strided: bool
    """Whether the chip can roll row n of a tile by n lanes more than row 0 (v5e and later)."""
    saved: bool
    """Whether the forward pass saves its weights for the backward pass; needs one block of keys."""
    vmem_bytes: int
    """Bytes of vector memory that the compiler may use."""
    interpret: bool
    """Whether the kernel runs as plain JAX, on any device."""

    @property
    def heads(self) -> int:
        """Heads in a program."""
        return self.groups * LANES // self.head_dim

    def each_group(self) -> Iterator[tuple[int, slice]]:
        """Returns number and lanes of each group."""
        return ((n, slice(n * LANES, (n + 1) * LANES)) for n in range(self.groups))

    @property
    def rolled(self) -> bool:
        """Whether the offset in the window falls by 1 per row, and the chip has strided rolls."""
        return self.strided and not self.chosen

    @property
    def one_window(self) -> bool:
        """Whether the queries of a strip are in one window."""
        return not self.chosen or self.positions <= self.window

    @property
    def parts(self) -> list[slice]:
        """The parts of a block of keys."""
        return [slice(n, n + LANES) for n in range(0, self.key_block, LANES)]

    def rows(self, h: Any) -> Any:
        """Returns the rows of head h in a transposed array."""
        return pl.ds(pl.multiple_of(h * self.head_dim, self.head_dim), self.head_dim)

    @property
    def skips(self) -> bool:
        """As in `Plan`; with one block of keys there is nothing to skip."""
        return super().skips and self.keys > self.key_block

    @property
    def reads_columns(self) -> bool:
        """Whether a unit reads its columns. Without relative positions only dropout needs them,
        because the heads of a strip share `Units.mask_ref`.
        """
        return self.relative or self.rate > 0

    @property
    def keeps_columns(self) -> bool:
        """Whether the columns of all units are filled at the first visit of a block of queries, and
        stay: small blocks of keys would not pay for filling them.
        """
        return self.skips and self.reads_columns

    @property
    def columns(self) -> tuple[int, ...]:
        """Shape of `Units.columns_ref`."""
        return self.units if self.keeps_columns else 2, 4 + self.packed

    def visited(self, seen: Any, b: Any, i: Any, n: Any) -> tuple[Any, Any]:
        """Returns the n-th block of keys that block i of queries visits, and whether there is one;
        if not, the last that it visits. `seen`: `TpuInputs.seen`.
        """
        if not self.skips:
            return n, True
        first, last = (ref[b, i] for ref in seen)
        return jnp.minimum(first + n, last), first + n <= last

    @property
    def units(self) -> int:
        """Pairs of a strip and a head in a program."""
        return self.query_block // self.strip * self.heads


class TpuInputs(NamedTuple):
    """References to the inputs of both kernels, in the order in which `tpu` passes them."""

    table: Any
    """Index of each row's table of position keys. This and the next fields up to `seen` are known
    before a program starts. `table`, `first`, `last`, `r` and `small` are None without
    `plan.relative`.
    """
    word: Any
    """Dropout's hash word after row and head; with documents the number of the head."""
    first: Any
    """The first window of each block of queries."""
    last: Any
    """The last window of each block of queries."""
    size: Any
    """With a window its size, [1]."""
    seen: Any
    """With `plan.skips` the first and the last block of keys that each block of queries sees."""
    q: Any
    k: Any
    v: Any
    r: Any
    small: Any
    """float32 [8, L], rows: content, position and segment bias, then `tpu_kernels.OTHER`."""
    queries: Any
    """int32 rows: see `packing.padded_queries`."""
    keys: Any
    """int32 rows: see `packing.padded_keys`."""


class Unit(NamedTuple):
    """One head of a strip, and the keys of the block; L are the 128 lanes that contain the head."""

    plan: TpuPlan
    inputs: TpuInputs
    h: Any
    here: Any
    """The strip in the block of queries."""
    start: Any
    """The position of the first query of the strip minus T, modulo 128."""
    columns_ref: Any
    """int32 [4 or 5, Q, 128]: limit, segment or position in the window, position, dropout's hash
    word after the query; with documents the floor.
    """
    mask_ref: Any
    """The rows of the strip in `Units.mask_ref`."""
    first_key: Any
    windows: tuple[Any, Any]
    """With `plan.relative` the first and the last window of the strip."""

    @property
    def group(self) -> Any:
        """Number of the group of 128 lanes that contains the head."""
        return self.h * self.plan.head_dim // LANES

    @property
    def lanes(self) -> Any:
        """The 128 lanes that contain the head."""
        return pl.ds(pl.multiple_of(self.group * LANES, LANES), LANES)

    @property
    def lane_1L(self) -> jax.Array:
        """Bool [1, 128]: the lanes of the head in its group."""
        return lanes_of(self.plan, self.h % (LANES // self.plan.head_dim))

    @property
    def rows(self) -> Any:
        """The rows of the head in a transposed array."""
        return self.plan.rows(self.h)

    def visible(self, part: slice) -> jax.Array:
        """Returns whether the query sees the key, bool [Q, 128]."""
        visible_QK = self.inputs.keys[0, 0:1, part] < self.columns_ref[0]
        if self.plan.packed:
            visible_QK &= self.inputs.keys[0, 0:1, part] >= self.columns_ref[4]
        if self.plan.near:
            distance_QK = self.columns_ref[1] - self.inputs.keys[0, 1:2, part]
            visible_QK &= jnp.abs(distance_QK) <= self.inputs.size[0]
        if self.plan.farthest is not None:
            visible_QK &= self.columns_ref[2] - self._key(part) <= self.plan.farthest
        return visible_QK

    def other(self, part: slice) -> jax.Array:
        """Returns whether the key is in another segment, bool [Q, 128]."""
        return self.inputs.keys[0, 1:2, part] != self.columns_ref[1]

    def kept(self, part: slice) -> jax.Array | bool:
        """Returns where dropout keeps a probability, bool [Q, 128]."""
        if not self.plan.rate:
            return True
        word_QL = self.columns_ref[3].astype(jnp.uint32)
        key_1L = self.inputs.keys[0, 2:3, part] if self.plan.packed else self._key(part)
        return keep(self.plan.rate, word_QL, key_1L)

    @property
    def start_QL(self) -> jax.Array:
        """The row of the position keys for key 0."""
        return self.plan.positions - 1 - self.columns_ref[2]

    def _key(self, part: slice) -> jax.Array:
        return self.first_key + part.start + jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)

    def row(self, window: Any) -> Any:
        """Returns the first row of the position keys for a window."""
        return pl.multiple_of(window * self.plan.window + self.first_key, LANES)

    def each_window(self, visit: Callable[[Any, Any], None]) -> None:
        """Calls visit(first row of the position keys, whether queries [Q, 128] are in the window)
        for each window.
        """
        window_QL = self.start_QL >> self.plan.window.bit_length() - 1

        @pl.loop(self.windows[0], self.windows[1] + 1)
        def _window(w: Any) -> None:
            visit(self.row(w), window_QL[:, :1] == w)


class Units(NamedTuple):
    """The units of a program, by number: the heads of the first strip, then those of the next."""

    plan: TpuPlan
    inputs: TpuInputs
    columns_ref: Any
    """int32 [2 slots or units, 4 or 5, Q, 128]; see `Unit`."""
    mask_ref: Any
    """Without `plan.relative`: 0 for visible keys and -FAR for hidden keys of the block, float32
    [block of queries, block of keys].
    """
    program: tuple[Any, Any, Any, Any]
    """Numbers of row, lanes, queries, keys."""
    groups_first: bool
    """Whether the grid's first axis is the lanes, its second the row."""

    def start(self) -> None:
        """Fills the columns of all units with `plan.keeps_columns`."""
        if not self.plan.keeps_columns:
            return

        @pl.loop(0, self.plan.units)
        def _unit(n: Any) -> None:
            self._fill(n, 0)

    def fill_mask(self) -> None:
        """Writes `mask_ref`, if there is one."""
        if self.mask_ref is None:
            return

        @pl.loop(0, self.plan.query_block // self.plan.strip)
        def _strip(s: Any) -> None:
            unit = self._fill(s * self.plan.heads, 0)
            for part in self.plan.parts:
                unit.mask_ref[:, part] = jnp.where(unit.visible(part), 0, -packing.FAR)

    def ready(self, n: Any, slot: int) -> Unit:
        """Returns unit n with the columns that it reads; if they are not kept, fills the slot."""
        fills = self.plan.reads_columns and not self.plan.keeps_columns
        return self._fill(n, slot) if fills else self(n, slot)

    def _fill(self, n: Any, slot: int) -> Unit:
        plan, (b, g, *_), unit = self.plan, self.program, self(n, slot)
        rows_8Q = self.inputs.queries[0, :, unit.here]
        if plan.rate:
            group = (b * pl.num_programs(0 if self.groups_first else 1) + g) * plan.heads
            word = self.inputs.word[group + unit.h].astype(jnp.uint32)
            indices = word, rows_8Q[2:3]
            if plan.packed:
                indices = rows_8Q[3:4].astype(jnp.uint32), word, rows_8Q[5:6]
            word_1Q = advance(*indices).astype(jnp.int32)
            rows_8Q = jnp.where(
                jax.lax.broadcasted_iota(jnp.int32, (SUBLANES, 1), 0) == 3, word_1Q, rows_8Q
            )
        columns_Q8 = rows_8Q.T
        unused = () if plan.relative else (2,) if plan.near else (1, 2)
        for m in range(plan.columns[1]):
            if m not in unused:
                unit.columns_ref[m] = wide(columns_Q8[:, m : m + 1])
        return unit

    def __call__(self, n: Any, slot: int) -> Unit:
        """Returns unit n, with its columns in the slot."""
        plan, inputs, (b, _, i, j) = self.plan, self.inputs, self.program
        s, h = n // plan.heads, n % plan.heads
        one_strip = plan.query_block == plan.strip
        here = pl.ds(0 if one_strip else pl.multiple_of(s * plan.strip, plan.strip), plan.strip)
        windows, start = (0, 0), 0
        if plan.relative:
            block = b * pl.num_programs(2) + i
            windows = inputs.first[block], inputs.last[block]
            if not plan.chosen:
                windows = (
                    (plan.positions - 1 - s * plan.strip - i * plan.query_block) // plan.window,
                ) * 2
        if plan.relative and plan.strip < LANES:
            start = i * plan.query_block + s * plan.strip - plan.positions & LANES - 1
        columns = self.columns_ref.at[n if plan.keeps_columns else slot]
        mask = None if plan.relative else self.mask_ref.at[here]
        first_key = j * plan.key_block
        return Unit(plan, inputs, h, here, start, columns, mask, first_key, windows)


def only(which: jax.Array | bool, x: jax.Array) -> jax.Array:
    """Returns x where `which` is true, and 0 elsewhere."""
    return jnp.where(which, x, 0)


def wide(x_Q1: jax.Array) -> jax.Array:
    """Broadcasts x to [Q, 128], only once: each time costs an instruction per register."""
    return jnp.broadcast_to(x_Q1, (len(x_Q1), LANES))


def lanes_of(plan: TpuPlan, h: Any) -> jax.Array:
    """Returns the lanes of head h of a group, bool [1, 128]."""
    lane_1L = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return (lane_1L >= h * plan.head_dim) & (lane_1L < (h + 1) * plan.head_dim)
