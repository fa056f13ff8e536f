"""What the compiled text of a program says about one turn of its scan: kernels, their kinds, bytes.

Reads XLA's text after all its passes. A loop in the loop's body is counted apart, once per turn of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

BYTES = {"pred": 1, "f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4}
BYTES |= {"f16": 2, "bf16": 2, "s16": 2, "u16": 2, "s8": 1, "u8": 1}
TABLE_ENTRIES = 64  # entries a lane from which an array that the loop carries counts as a table
NO_KERNEL = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "opt-barrier"}
NO_KERNEL |= {"after-all"}
_NAME = r"%?([\w.\-]+)"
_HEAD = re.compile(rf"^(?:ENTRY )?{_NAME} \(.*\) -> .* \{{")
_INSTRUCTION = re.compile(rf"^(?:ROOT )?{_NAME} = (\(.*?\)|\S+) ([a-z\-]+)\((.*)$")
_SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_COMMENT = re.compile(r"/\*.*?\*/")
KINDS = {"reduce": "reduction", "concatenate": "concatenation"}
_READS = {"gather", "dynamic-slice", "slice"}  # touch as much as they give
_WRITES = {"scatter", "dynamic-update-slice"}  # in place, if the buffer may be used
_VIEWS = {"bitcast", "reshape"}


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    opcode: str
    operands: tuple[str, ...]
    attributes: str

    @property
    def num_bytes(self) -> int:
        """Return the size of the instruction's result in bytes."""
        return sum(BYTES.get(kind, 4) * prod(sizes) for kind, sizes in self.shapes)

    def called(self, attribute: str) -> str:
        """Return the name of the computation that an attribute refers to; empty if there is none."""
        match = re.search(rf"{attribute}={_NAME}", self.attributes)
        return match.group(1) if match else ""


Computations = Mapping[str, Sequence[Instruction]]


@dataclass
class Counts:
    """Kernels and bytes of one turn of the scan."""

    kinds: Counter[str] = field(default_factory=Counter)
    kernel_bytes: list[int] = field(default_factory=list)
    num_table_copies: int = 0
    inner_kernels: int = 0  # of one turn of each loop in the body, its condition included

    @property
    def num_kernels(self) -> int:
        """Return the kernels of a turn, without those of inner loops."""
        return sum(self.kinds.values())

    @property
    def num_bytes(self) -> int:
        """Return the bytes read and written, where a slice of a table counts as the slice."""
        return sum(self.kernel_bytes)


def computations_of(text: str) -> Computations:
    """Return the computations of a module's text by name."""
    computations: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        line = _COMMENT.sub("", line.strip())
        head = _HEAD.match(line)
        if head:
            current = computations.setdefault(head.group(1), [])
            continue
        parts = _INSTRUCTION.match(line)
        if parts:
            name, shape, opcode, rest = parts.groups()
            inside, _, attributes = rest.partition(")")
            sizes = tuple(
                (kind, tuple(int(n) for n in dims.split(",") if n))
                for kind, dims in _SHAPE.findall(shape)
            )
            operands = tuple(_OPERAND.findall(inside))
            current.append(Instruction(name, sizes, opcode, operands, attributes))
    return computations


def scan_body(computations: Computations) -> str:
    """Return the body of the innermost loop with a known number of turns that holds the most instructions."""
    bodies = [
        instruction.called("body")
        for instructions in computations.values()
        for instruction in instructions
        if instruction.opcode == "while" and "known_trip_count" in instruction.attributes
    ]
    if not bodies:
        raise ValueError("the text has no loop with a known number of turns")
    return max(bodies, key=lambda name: len(computations[name]))


def _content(computations: Computations, instruction: Instruction) -> Sequence[Instruction]:
    if instruction.opcode == "fusion":
        return computations[instruction.called("calls")]
    return (instruction,)


def _roots(content: Sequence[Instruction]) -> Iterator[Instruction]:
    """Return the instructions that compute a fused computation's results, behind views and the tuple of several
    results.
    """
    by_name = {instruction.name: instruction for instruction in content}
    waiting = [content[-1]]
    while waiting:
        instruction = waiting.pop()
        if instruction.opcode == "tuple" or instruction.opcode in _VIEWS:
            waiting += [by_name[name] for name in instruction.operands if name in by_name]
        else:
            yield instruction


def kind_of(computations: Computations, instruction: Instruction) -> str:
    """Return the main operation of a kernel, by the instructions that compute its results."""
    opcodes = {root.opcode for root in _roots(_content(computations, instruction))}
    if opcodes & _WRITES:
        return "in-place scatter"
    for opcode in ("sort", "reduce", "concatenate", "transpose", "while"):
        if opcode in opcodes:
            return KINDS.get(opcode, opcode)
    if opcodes <= {"copy", "parameter"}:
        return "copy"
    return "elementwise" if instruction.opcode == "fusion" else instruction.opcode


def _touched(content: Sequence[Instruction], part: Instruction) -> int:
    """Return the bytes of a parameter that a fused computation reads: a slice counts as the slice alone."""
    users = [other for other in content if part.name in other.operands]
    total = 0
    for user in users:
        is_table = user.operands[:1] == (part.name,)
        if user.opcode in _VIEWS:
            total += _touched(content, user)
        elif user.opcode in _WRITES and is_table:
            continue
        elif user.opcode in _READS and is_table:
            total += user.num_bytes
        else:
            return part.num_bytes
    return min(total, part.num_bytes)


def bytes_of(
    computations: Computations, body: Mapping[str, Instruction], instruction: Instruction
) -> int:
    """Return the bytes that a kernel reads and writes."""
    content = _content(computations, instruction)
    if instruction.opcode != "fusion":
        return instruction.num_bytes + sum(
            body[name].num_bytes for name in instruction.operands if name in body
        )
    read = sum(_touched(content, part) for part in content if part.opcode == "parameter")
    updates = [part for part in content if part.opcode in _WRITES]
    if not updates:
        return read + instruction.num_bytes
    sizes = {part.name: part.num_bytes for part in content}
    return read + sum(min(sizes.get(name, 0) for name in part.operands) for part in updates)


def _tables(instructions: Sequence[Instruction]) -> set[tuple[str, tuple[int, ...]]]:
    """Return the shapes of the arrays that the loop carries and that are too large to be rewritten in each turn."""
    carried = next(
        instruction for instruction in instructions if instruction.opcode == "parameter"
    ).shapes
    return {shape for shape in carried if prod(shape[1][1:]) > TABLE_ENTRIES}


def _kernels(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    return (
        instruction
        for instruction in instructions
        if instruction.opcode not in NO_KERNEL | {"while"}
    )


def _inner(computations: Computations, instructions: Sequence[Instruction]) -> int:
    total = 0
    for instruction in instructions:
        if instruction.opcode == "while":
            for part in (instruction.called("body"), instruction.called("condition")):
                inside = computations[part]
                total += len(list(_kernels(inside))) + _inner(computations, inside)
    return total


def count(text: str) -> Counts:
    """Count the kernels and bytes of one turn of the scan in a compiled module's text."""
    computations = computations_of(text)
    instructions = computations[scan_body(computations)]
    body = {instruction.name: instruction for instruction in instructions}
    tables, counts = _tables(instructions), Counts()
    for instruction in _kernels(instructions):
        kind = kind_of(computations, instruction)
        counts.kinds[kind] += 1
        counts.kernel_bytes.append(bytes_of(computations, body, instruction))
        if kind != "in-place scatter":
            counts.num_table_copies += any(shape in tables for shape in instruction.shapes)
    counts.inner_kernels = _inner(computations, instructions)
    return counts
