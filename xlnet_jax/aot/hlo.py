"""Reads the text of a compiled program: its collectives, how often and over which axes they run, and its loops.

Needs only text and numpy; https://openxla.org/xla/operation_semantics describes scheduled HLO modules. The body of a
loop counts once per iteration. A collective that the compiler splits into pieces, to overlap it with several
computations, has one `chain_id` and counts once.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence

import numpy as np

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
BITS = {"pred": 8, "bf16": 16, "token": 0, "s4": 4, "u4": 4}
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*?)\)(.*)$")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(r"\b(calls|to_apply|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_CALLERS = {"to_apply": "call", "called_computations": "custom-call-start"}
"""The only opcode whose computations under this name run by themselves; those of a custom call on the SparseCores."""
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "after-all"}
"""Opcodes that move no bytes themselves."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of collective over one group of devices, with its traffic per device."""

    kind: str
    axis: str
    """Mesh axes its groups run over, joined by +."""
    network: str
    """`ici` within a slice, `dcn` between slices."""
    group: int
    """Number of devices in one group."""
    dtype: str
    """Of the elements that are sent or added, as the compiler writes it: f32, bf16; joined by + if they differ."""
    count: int
    """How often it runs in the whole program."""
    bytes: int
    """Bytes of the whole array, over all runs: the operand of a reduction, the result of a gather."""


class Program:
    """A compiled module. ValueError if the text is not one, or the trip count of a loop cannot be read."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, dict[str, Instruction]] = {}
        entry, current = "", {}
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                current = self.computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
            elif found := _INSTRUCTION.match(line):
                root, name, kind, opcode, inner, attributes = found.groups()
                # The value of a constant and the number of a parameter are in the place of the operands.
                operands = re.findall(r"%([\w.\-]+)", inner) or [inner]
                current[name] = Instruction(name, kind, opcode, tuple(operands), attributes, bool(root))
        if not entry:
            raise ValueError("the text has no ENTRY computation")
        self.runs: collections.Counter[str] = collections.Counter()
        """How often each computation runs."""
        self._loops: dict[str, str] = {}
        """The loop body that each computation is in."""
        self._visit(entry, 1, entry)

    def _visit(self, name: str, times: int, loop: str) -> None:
        """Adds `times` runs of a computation and of everything it calls."""
        self.runs[name] += times
        self._loops[name] = loop
        for one in self.computations[name].values():
            if one.opcode == "while":
                turns, body = self.trip_count(name, one), _attribute(one, "body")
                self._visit(_attribute(one, "condition"), times * (turns + 1), loop)
                self._visit(body, times * turns, body)
            for field, names in _CALLED.findall(one.attributes):
                if _CALLERS.get(field, one.opcode) == one.opcode:
                    for each in re.findall(r"[\w.\-]+", names):
                        self._visit(each, times, loop)

    def trip_count(self, where: str, loop: Instruction) -> int:
        """Iterations of a loop that counts in steps of 1 up to a constant, as scans do: from 0, or from a constant
        where the compiler has taken the first iterations out of it."""
        known = re.search(r'known_trip_count":?\{"n":"(\d+)"', loop.attributes)
        if known:
            return int(known[1])
        condition, caller = self.computations[_attribute(loop, "condition")], self.computations[where]

        def constant(name: str) -> int | None:
            one = condition.get(name)
            if one is not None and one.opcode == "get-tuple-element":
                # Part of the carried tuple: take its initial value.
                index = re.search(r"index=(\d+)", one.attributes)
                start = caller[loop.operands[0]]
                one = caller.get(start.operands[int(index[1])]) if index and start.opcode == "tuple" else None
                while one is not None and one.opcode == "copy":
                    one = caller.get(one.operands[0])
            return int(one.operands[0]) if one and one.opcode == "constant" and one.operands[0].isdigit() else None

        (test,) = [one for one in condition.values() if one.root]
        known_test = "direction=LT" in test.attributes and len(test.operands) == 2
        limit = constant(test.operands[1]) if known_test else None
        if limit is None:
            raise ValueError(f"loop {loop.name}: its trip count is not a constant")
        return limit - (constant(test.operands[0]) or 0)

    def collectives(self, axes: dict[str, int]) -> list[Collective]:
        """All collectives, equal ones merged, most bytes first; `axes` are the mesh's names and sizes in order."""
        counted: collections.Counter[tuple[str, str, str, int, str]] = collections.Counter()
        moved: collections.Counter[tuple[str, str, str, int, str]] = collections.Counter()
        chains: set[tuple[str, ...]] = set()
        for name, times in self.runs.items():
            for one in self.computations[name].values():
                kind = _kind(name, one)
                chain = re.search(r"channel_id=(\d+).*chain_id=(\S+)", one.attributes)
                piece = (self._loops[name], *chain.groups()) if chain else (name, one.name)
                # Only the first of the pieces of a collective counts.
                if kind is None or piece in chains:
                    continue
                chains.add(piece)
                # A send also has a token operand, which has no bytes.
                operands = one.operands[:1] if one.opcode == "send" else one.operands
                types = " ".join(self.computations[name][operand].type for operand in operands)
                size, dtype = array_bytes(types), "+".join(sorted({dtype for dtype, _ in _ARRAY.findall(types)}))
                if one.opcode == "send":
                    # Between slices; slices are the first mesh axis, see mesh.make_mesh.
                    slices = re.search(r'megascale_target="\{([\d,]+)\}', one.attributes)
                    key = (kind, next(iter(axes)), "dcn", len(_ints(slices[1])) if slices else 2, dtype)
                else:
                    groups = device_groups(one.attributes, math.prod(axes.values()))
                    key = (kind, axes_of(groups, axes), "ici", max(map(len, groups)), dtype)
                counted[key] += times
                moved[key] += times * size * (key[3] if kind == "all-gather" else 1)
        found = [Collective(*key, counted[key], moved[key]) for key in counted]
        return sorted(found, key=lambda each: -each.bytes)

    def repeats(self) -> float:
        """Bytes written by the whole program / bytes if every computation counts once, as the compiler counts them."""
        written = [(times, self._written(body, one)) for body, one, times in self._executed()]
        once = sum(size for _, size in written)
        return sum(times * size for times, size in written) / once if once else 1.0

    def kernels(self) -> dict[str, tuple[int, int]]:
        """Of each call of a Pallas kernel: how often it runs, and the bytes of operands and results."""
        return {one.name: (times, sum(array_bytes(each.type) for each in (one, *map(body.__getitem__, one.operands))))
                for body, one, times in self._executed() if "tpu_custom_call" in one.attributes}  # fmt: skip

    def _executed(self) -> Iterator[tuple[dict[str, Instruction], Instruction, int]]:
        """Every instruction that is not inside of a fusion, with its computation before it and its runs after it."""
        every = [one for body in self.computations.values() for one in body.values()]
        fused = {_attribute(one, "calls") for one in every if one.opcode == "fusion"}
        for name, times in self.runs.items():
            body = self.computations[name] if name not in fused else {}
            yield from ((body, one, times) for one in body.values())

    def _written(self, body: dict[str, Instruction], one: Instruction) -> int:
        """Bytes of the result; of an array that is updated in place only the slice."""
        if one.opcode in FREE or one.opcode.endswith(("-done", "-update")):
            return 0
        if one.opcode == "fusion":
            body = self.computations[_attribute(one, "calls")]
        within = body.values() if one.opcode == "fusion" else (one,)
        updates = [each for each in within if each.opcode == "dynamic-update-slice"]
        kept = sum(array_bytes(each.type) - array_bytes(body[each.operands[1]].type) for each in updates)
        return max(array_bytes(one.type) - kept, 0)


def _attribute(one: Instruction, name: str) -> str:
    found = re.search(rf"\b{name}=%?([\w.\-]+)", one.attributes)
    if not found:
        raise ValueError(f"{one.opcode} {one.name} has no {name}")
    return found[1]


def _kind(computation: str, one: Instruction) -> str | None:
    """The collective that an instruction starts, if it starts one."""
    if one.opcode == "send":
        between = re.search(r'_xla_megascale_transfer_type="(\w+)"', one.attributes)
        return between[1].lower().replace("_", "-") if between else None
    kind = one.opcode.removesuffix("-start")
    if kind == "all-reduce" and "all-reduce-scatter" in computation:
        # Fused on TPU with the slice that follows it.
        return "reduce-scatter"
    return kind if kind in COLLECTIVES else None


def array_bytes(kind: str) -> int:
    """Bytes of an array type, or of all arrays of a tuple type, without padding."""
    total = 0
    for dtype, dims in _ARRAY.findall(kind):
        digits = re.search(r"\d+", dtype)
        bits = BITS[dtype] if dtype in BITS else int(digits[0]) if digits else 0
        total += bits * math.prod(int(size) for size in dims.split(",") if size) // 8
    return total


def device_groups(attributes: str, devices: int) -> list[list[int]]:
    """The device groups of a collective, from any notation: lists, iota, mesh axes, or pairs of a permutation."""
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", attributes)
    if pairs:
        return [_ints(pair) for pair in re.findall(r"\{?(\d+,\d+)", pairs[1])]
    named = re.search(
        r"replica_groups=@?\w*\[((?:'\w+'=\d+,? ?)+)\](?:, device_ids=\((.*?)\))? ?\{([^}]*)\}", attributes
    )
    if named:
        # 'axis':(2)4 is a part of the axis: of its positions 2 x 4 x rest, the 4.
        across = {name: (int(before or 1), int(size or 0)) for name, before, size in
                  re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", named[3])}  # fmt: skip
        shape, places = [], {}
        for name, length in re.findall(r"'(\w+)'=(\d+)", named[1]):
            before, size = across.get(name, (1, 0))
            places[name] = len(shape) + 1
            shape += [before, size or int(length), int(length) // (before * (size or int(length)))]
        ids = _iota(named[2] or f"[{math.prod(shape)}]").reshape(shape)
        ids = np.moveaxis(ids, [places[name] for name in across], range(-len(across), 0))
        return ids.reshape(-1, math.prod(shape[places[name]] for name in across)).tolist()
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if iota:
        return _iota(iota[2]).reshape(_ints(iota[1])).tolist()
    if "replica_groups={}" in attributes:
        return [list(range(devices))]
    listed = re.search(r"replica_groups=\{(\{[\d,]+\}(?:,\{[\d,]+\})*)\}", attributes)
    if not listed:
        raise ValueError(f"cannot read the groups of a collective: {attributes[:200]}")
    return [_ints(group) for group in re.findall(r"\{([\d,]+)\}", listed[1])]


def _iota(text: str) -> np.ndarray:
    """`[2,4]T(1,0)`: the numbers from 0 in this shape, transposed."""
    shape, _, order = text.partition("T")
    ids = np.arange(math.prod(_ints(shape))).reshape(_ints(shape))
    return ids.transpose(_ints(order)) if order else ids


def _ints(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", text)]


def axes_of(groups: Sequence[Sequence[int]], axes: dict[str, int]) -> str:
    """Names of the mesh axes along which members of one group differ, joined by +; devices are in mesh order."""
    varying: set[str] = set()
    for group in groups:
        coordinates = np.array(np.unravel_index(np.asarray(group), tuple(axes.values())))
        varying |= {name for name, row in zip(axes, coordinates, strict=True) if len(set(row.tolist())) > 1}
    return "+".join(name for name in axes if name in varying) or "none"
