"""Reads the text of a compiled program: its loops, its collectives and their axes.

Needs only text and numpy; https://openxla.org/xla/operation_semantics describes scheduled HLO
modules. The body of a loop counts once per iteration. A collective that the compiler splits into
pieces, to overlap it with several computations, has one `chain_id` and counts once.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*?)\)(.*)$")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALLED = re.compile(
    r"\b(calls|to_apply|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_CALLERS = {"to_apply": "call", "called_computations": "custom-call-start"}
"""Opcodes by attribute: only an instruction with this opcode runs the computation in the attribute
as a whole. A custom call runs it on the SparseCores.
"""
ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_STRUCTURE = re.compile(r"jit\(.*\)|while|body|closed_call|shard_map")
"""Parts of the name of a place that name no part of the model."""
KERNEL = "tpu_custom_call"
"""Name in a custom call of a Pallas kernel."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def label(self) -> str:
        """Its place in the model; without one, its name. The number at the end is left out, so that
        equal layers and equal kernels have equal labels.
        """
        found = re.search(r'op_name="([^"]+)"', self.attributes)
        place = self.name if KERNEL in self.attributes or not found else found[1]
        parts = [part for part in place.split("/") if not _STRUCTURE.fullmatch(part)]
        return re.sub(r"\.[\d.]+$", "", "/".join(parts))


@dataclasses.dataclass(frozen=True)
class Collective:
    """One kind of collective over one group of devices, with its traffic per device."""

    kind: str
    axis: str
    """Mesh axes of its groups, joined by +."""
    network: str
    """`ici` within a slice, `dcn` between slices."""
    group: int
    """Number of devices in one group."""
    dtype: str
    """Dtypes of the elements, as the compiler writes them: f32, bf16; joined by + if they
    differ.
    """
    count: int
    """Runs in the whole program."""
    bytes: int
    """Bytes of the whole array over all runs: the operand of a reduction, the result of a
    gather.
    """


class Program:
    """A compiled module. Raises ValueError if the text is no module, or the trip count of a loop
    cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.computations: dict[str, dict[str, Instruction]] = {}
        entry = ""
        current = {}
        for line in text.splitlines():
            if header := _COMPUTATION.match(line):
                current = self.computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
            elif found := _INSTRUCTION.match(line):
                root, name, kind, opcode, inner, attributes = found.groups()
                # A constant has its value, and a parameter its number, in the place of the
                # operands.
                operands = re.findall(r"%([\w.\-]+)", inner) or [inner]
                current[name] = Instruction(
                    name, kind, opcode, tuple(operands), attributes, bool(root)
                )
        if not entry:
            raise ValueError("the text has no ENTRY computation")
        self.runs: collections.Counter[str] = collections.Counter()
        """Runs of each computation."""
        self._loops: dict[str, str] = {}
        """Names of the loop bodies around the computations."""
        self.entry = entry
        self._visit(entry, 1, entry)

    def _visit(self, name: str, times: int, loop: str) -> None:
        """Adds `times` runs of a computation and of everything it calls."""
        self.runs[name] += times
        self._loops[name] = loop
        for one in self.computations[name].values():
            if one.opcode == "while":
                turns = self.trip_count(name, one)
                body = attribute(one, "body")
                self._visit(attribute(one, "condition"), times * (turns + 1), loop)
                self._visit(body, times * turns, body)
            for each in called(one):
                self._visit(each, times, loop)

    def trip_count(self, where: str, loop: Instruction) -> int:
        """Returns the iterations of a loop that counts up to a constant. The counter starts above 0
        if the compiler took out the first iterations, and its step is above 1 if the compiler
        joined iterations.
        """
        known = re.search(r'known_trip_count":?\{"n":"(\d+)"', loop.attributes)
        if known:
            return int(known[1])
        condition = self.computations[attribute(loop, "condition")]
        caller = self.computations[where]

        def constant(name: str) -> int | None:
            one = condition.get(name)
            if one is not None and one.opcode == "get-tuple-element":
                # Part of the carried tuple: take its initial value.
                one = _part(caller, caller[loop.operands[0]], one)
                while one is not None and one.opcode == "copy":
                    one = caller.get(one.operands[0])
            return (
                int(one.operands[0])
                if one and one.opcode == "constant" and one.operands[0].isdigit()
                else None
            )

        (test,) = [one for one in condition.values() if one.root]
        known_test = "direction=LT" in test.attributes and len(test.operands) == 2
        limit = constant(test.operands[1]) if known_test else None
        if limit is None:
            raise ValueError(f"loop {loop.name}: its trip count is not a constant")
        step = self._step(attribute(loop, "body"), condition.get(test.operands[0]))
        return -(-(limit - (constant(test.operands[0]) or 0)) // step)

    def _step(self, body: str, counter: Instruction | None) -> int:
        """Returns the number that one iteration adds to a part of the carried tuple."""
        inside = self.computations[body]
        (carried,) = [one for one in inside.values() if one.root]
        after = _part(inside, carried, counter)
        added = [inside[name] for name in after.operands] if after and after.opcode == "add" else []
        steps = [int(one.operands[0]) for one in added if one.opcode == "constant"]
        if len(steps) != 1:
            raise ValueError(f"loop with the body {body}: it does not count by a constant")
        return steps[0]

    def collectives(self, axes: dict[str, int]) -> list[Collective]:
        """Returns all collectives, equal ones merged, most bytes first; `axes` are the mesh's names
        and sizes in order.
        """
        counted = collections.Counter[Collective]()
        moved = collections.Counter[Collective]()
        chains: set[Any] = set()
        for name, times in self.runs.items():
            for one in self.computations[name].values():
                found = self.collective(name, one, axes)
                piece = (self._loops[name], self.chain(one) or one.name) if found else None
                # Only the first of the pieces of a collective counts.
                if found is None or piece in chains:
                    continue
                chains.add(piece)
                kind = dataclasses.replace(found, count=0, bytes=0)
                counted[kind] += times
                moved[kind] += times * found.bytes
        return [
            dataclasses.replace(kind, count=counted[kind], bytes=total)
            for kind, total in moved.most_common()
        ]

    def collective(self, name: str, one: Instruction, axes: dict[str, int]) -> Collective | None:
        """Returns one run of the collective that this instruction of the computation starts or
        belongs to; None for other instructions.
        """
        kind = _kind(name, one)
        if kind is None:
            return None
        # A send also has a token operand, which has no bytes.
        operands = one.operands[:1] if one.opcode == "send" else one.operands
        types = " ".join(self.computations[name][operand].type for operand in operands)
        size = array_bytes(types)
        dtype = "+".join(sorted({found[0] for found in ARRAY.findall(types)}))
        if one.opcode == "send":
            # Between slices; slices are the first mesh axis, see mesh.make_mesh.
            slices = re.search(r'megascale_target="\{([\d,]+)\}', one.attributes)
            axis, network, group = next(iter(axes)), "dcn", len(ints(slices[1])) if slices else 2
        else:
            groups = device_groups(one.attributes, math.prod(axes.values()))
            axis, network, group = axes_of(groups, axes), "ici", max(map(len, groups))
        return Collective(
            kind, axis, network, group, dtype, 1, size * (group if kind == "all-gather" else 1)
        )

    def collectives_of(self, name: str, one: Instruction, axes: dict[str, int]) -> list[Collective]:
        """Returns the collectives that an instruction runs once, also inside a fusion."""
        place = attribute(one, "calls") if one.opcode == "fusion" else name
        inside = self._pieces(one)
        return [found for each in inside if (found := self.collective(place, each, axes))]

    def _pieces(self, one: Instruction) -> list[Instruction]:
        """Returns the instructions of a fusion; for any other instruction only itself."""
        if one.opcode == "fusion":
            return [*self.computations[attribute(one, "calls")].values()]
        return [one]

    def chain(self, one: Instruction) -> str | None:
        """Returns a name common to the pieces of one collective, or to the fusions around them."""
        found = (
            re.search(r"channel_id=(\d+).*chain_id=(\S+)", each.attributes)
            for each in self._pieces(one)
        )
        return next((" ".join(each.groups()) for each in found if each), None)

    def kernels(self) -> list[Instruction]:
        """Returns the calls of Pallas kernels."""
        return [
            one
            for name in self.runs
            for one in self.computations[name].values()
            if KERNEL in one.attributes
        ]

    def identity(self, body: dict[str, Instruction], one: Instruction) -> tuple[Any, ...]:
        """Returns a value that is equal for instructions that compute the same."""
        operands = [body[name].type for name in one.operands if name in body]
        pieces = [(each.opcode, each.type) for each in self._pieces(one)]
        return (one.type, *operands, *pieces)


def called(one: Instruction) -> list[str]:
    """Returns the computations that an instruction runs once, not a loop's condition and body."""
    found = _CALLED.findall(one.attributes)
    names = " ".join(
        names for field, names in found if _CALLERS.get(field, one.opcode) == one.opcode
    )
    return re.findall(r"[\w.\-]+", names)


def attribute(one: Instruction, name: str) -> str:
    """Returns the computation in an instruction's attribute. Raises ValueError without it."""
    found = re.search(rf"\b{name}=%?([\w.\-]+)", one.attributes)
    if not found:
        raise ValueError(f"{one.opcode} {one.name} has no {name}")
    return found[1]


def _part(
    body: dict[str, Instruction], whole: Instruction, read: Instruction | None
) -> Instruction | None:
    """Returns the instruction that computes the part of a tuple that a get-tuple-element reads;
    None if it is not in the text.
    """
    index = re.search(r"index=(\d+)", read.attributes) if read else None
    return body.get(whole.operands[int(index[1])]) if index and whole.opcode == "tuple" else None


def _kind(computation: str, one: Instruction) -> str | None:
    """Returns the kind of the collective that an instruction starts; None if it starts none."""
    if one.opcode == "send":
        between = re.search(r'_xla_megascale_transfer_type="(\w+)"', one.attributes)
        return between[1].lower().replace("_", "-") if between else None
    kind = one.opcode.removesuffix("-start")
    if kind == "all-reduce" and "all-reduce-scatter" in computation:
        # On TPU the all-reduce is fused with the slice that follows it.
        return "reduce-scatter"
    return kind if kind in COLLECTIVES else None


def array_bytes(kind: str) -> int:
    """Returns bytes of an array type, or of all arrays of a tuple type, without padding."""
    return sum(bits(dtype) * math.prod(ints(dims)) // 8 for dtype, dims, *_ in ARRAY.findall(kind))


def bits(dtype: str) -> int:
    """Returns an element's bits, the first number in its dtype; a token has no number: 0 bits."""
    return 8 if dtype == "pred" else (ints(dtype) or [0])[0]


def device_groups(attributes: str, devices: int) -> list[list[int]]:
    """Returns the device groups of a collective, from any notation: lists, iota, mesh axes, or
    pairs of a permutation.
    """
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", attributes)
    if pairs:
        return [ints(pair) for pair in re.findall(r"\{?(\d+,\d+)", pairs[1])]
    named = re.search(
        r"replica_groups=@?\w*\[((?:'\w+'=\d+,? ?)+)\](?:, device_ids=\((.*?)\))? ?\{([^}]*)\}",
        attributes,
    )
    if named:
        # 'axis':(2)4 is a part of the axis: with its positions as 2 x 4 x rest, the part is the 4.
        across = {
            name: (int(before or 1), int(size or 0))
            for name, before, size in re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", named[3])
        }
        shape = []
        places = {}
        for name, length in re.findall(r"'(\w+)'=(\d+)", named[1]):
            before, size = across.get(name, (1, 0))
            places[name] = len(shape) + 1
            shape += [before, size or int(length), int(length) // (before * (size or int(length)))]
        ids = _iota(named[2] or f"[{math.prod(shape)}]").reshape(shape)
        ids = np.moveaxis(ids, [places[name] for name in across], range(-len(across), 0))
        return ids.reshape(-1, math.prod(shape[places[name]] for name in across)).tolist()
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attributes)
    if iota:
        return _iota(iota[2]).reshape(ints(iota[1])).tolist()
    if "replica_groups={}" in attributes:
        return [list(range(devices))]
    listed = re.search(r"replica_groups=\{(\{[\d,]+\}(?:,\{[\d,]+\})*)\}", attributes)
    if not listed:
        raise ValueError(f"cannot read the groups of a collective: {attributes[:200]}")
    return [ints(group) for group in re.findall(r"\{([\d,]+)\}", listed[1])]


def _iota(text: str) -> np.ndarray:
    """Reads `[2,4]T(1,0)`: the numbers from 0 in this shape, transposed."""
    shape, _, order = text.partition("T")
    ids = np.arange(math.prod(ints(shape))).reshape(ints(shape))
    return ids.transpose(ints(order)) if order else ids


def ints(text: str) -> list[int]:
    """Returns the numbers in a text."""
    return [int(word) for word in re.findall(r"\d+", text)]


def axes_of(groups: Sequence[Sequence[int]], axes: dict[str, int]) -> str:
    """Returns names of the mesh axes along which members of one group differ, joined by +; devices
    are in mesh order.
    """
    varying: set[str] = set()
    for group in groups:  # not all of one size
        coordinates = np.unravel_index(np.asarray(group), tuple(axes.values()))
        varying |= {name for name, x_N in zip(axes, coordinates, strict=True) if np.ptp(x_N)}
    return "+".join(name for name in axes if name in varying) or "none"
