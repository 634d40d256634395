"""Bytes between HBM and core for one instruction of a compiled program, from the text of its
types.
"""

from __future__ import annotations

import math
import re

from xlnet_jax.aot.hlo import ARRAY, KERNEL, Instruction, Program, attribute, bits, ints

FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
    "partition-id",
}
"""Opcodes that move no bytes."""
_SLICES = {"slice", "dynamic-slice", "gather"}


def bytes_moved(program: Program, body: dict[str, Instruction], one: Instruction) -> int:
    """Returns bytes that one instruction reads from and writes to HBM, with the padding of tiles.

    A slice, a gather or an update in place counts only its part of the array. Repeated reads of a
    block in a Pallas kernel are not counted.
    """
    if one.opcode in ("copy-start", "slice-start"):
        # One end of a copy, or both, is in HBM.
        ends = _split(one.type)[:2]
        return min(map(padded_bytes, ends)) * sum(map(in_hbm, ends))
    if (
        one.opcode in FREE
        or one.opcode.endswith(("-start", "-update", "-done"))
        or _moves_nothing(one)
    ):
        return 0
    operands = [body[name] for name in one.operands if name in body]
    read = sum(
        min(_read(program, one, each.name, each.type), padded_bytes(each.type))
        for each in operands
        if in_hbm(each.type)
    )
    results = _split(one.type)
    written = _written(program, body, one)
    return read + sum(size for kind, size in zip(results, written, strict=True) if in_hbm(kind))


def _read(program: Program, one: Instruction, operand: str, kind: str) -> int:
    """Returns bytes that an instruction reads of a typed operand, once for each use in a fusion."""
    if _moves_nothing(one):
        return 0
    if one.opcode in _SLICES and one.operands[0] == operand:
        return padded_bytes(one.type)
    if one.opcode == "dynamic-update-slice" and one.operands[0] == operand:
        return 0
    if one.opcode != "fusion":
        return padded_bytes(kind)
    body = program.computations[attribute(one, "calls")]
    entries = {
        each.name
        for each in body.values()
        if each.opcode == "parameter" and one.operands[int(each.operands[0])] == operand
    }
    total = 0
    for each in body.values():
        if each.opcode == "bitcast" and each.operands[0] in entries:
            # The same array.
            entries.add(each.name)
        else:
            total += sum(
                _read(program, each, name, kind) for name in entries.intersection(each.operands)
            )
    return total


def _written(program: Program, body: dict[str, Instruction], one: Instruction) -> list[int]:
    """Returns bytes of each result; for an update in place only the bytes of the update."""
    if one.opcode == "fusion":
        body = program.computations[attribute(one, "calls")]
        (root,) = [each for each in body.values() if each.root]
        return _written(program, body, root)
    if one.opcode == "tuple":
        return [size for name in one.operands for size in _written(program, body, body[name])]
    if one.opcode == "bitcast" and one.operands[0] in body:
        return _written(program, body, body[one.operands[0]])
    if one.opcode == "parameter" or _moves_nothing(one):
        return [0] * len(_split(one.type))
    new = body[one.operands[1]] if one.opcode == "dynamic-update-slice" else one
    return [padded_bytes(kind) for kind in _split(new.type)]


def _moves_nothing(one: Instruction) -> bool:
    """Returns whether an instruction is a mark of the compiler, or a piece of a collective, which
    runs beside other work.
    """
    return (
        one.opcode == "custom-call" and KERNEL not in one.attributes
    ) or "chain_id=" in one.attributes


def padded_bytes(kind: str) -> int:
    """Returns bytes of an array type with its padding: `{1,0:T(8,128)}` rounds the two minor
    dimensions up to 8 and 128.
    """
    total = 0
    for dtype, dims, order, layout in ARRAY.findall(kind):
        sizes = ints(dims)
        tile = re.match(r"T\(([\d,]+)\)", layout)
        minor = [sizes[axis] for axis in ints(order)]
        for n, step in enumerate(reversed(ints(tile[1]) if tile else [])):
            minor[n : n + 1] = [-(-size // step) * step for size in minor[n : n + 1]]
        total += bits(dtype) * math.prod(minor if order else sizes) // 8
    return total


def in_hbm(kind: str) -> bool:
    """Returns whether an array is in HBM; `S(n)` in its layout names another memory."""
    return "S(" not in kind


def _split(kind: str) -> list[str]:
    """Returns the types of the arrays in an array or tuple type."""
    return [found[0] for found in ARRAY.finditer(kind)]
