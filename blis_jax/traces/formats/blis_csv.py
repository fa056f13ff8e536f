"""BLIS's CSV traces: arrival_time (seconds), request_id, model, prefill_tokens, decode_tokens.

The tokens are JSON lists, so contents are known: two requests share what their sequences of prompt
and output begin with alike. As in the reference, columns are taken by place, seconds are cut to
whole microseconds, request_id and model are ignored, and reading ends at the first arrival after
the horizon. There are no classes, tenants or sessions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.files.atomic_write import replacing
from blis_jax.traces.columns import Column, numbers
from blis_jax.traces.formats.csv_reader import header_names, read_columns
from blis_jax.traces.rows import LATEST_US, Reading, TraceRows, make_rows
from blis_jax.traces.sniff import Sniff
from blis_jax.traces.to_table import segments_of
from blis_jax.workload.contents import Segments, chain_numbers

if TYPE_CHECKING:
    import pandas

NO_BRANCH = -1
HEADER = "arrival_time,request_id,model,prefill_tokens,decode_tokens"


def matches(sniff: Sniff) -> bool:
    """Whether the fourth and fifth column are token lists, whatever their names."""
    has_names = sniff.has_columns("arrival_time", "prefill_tokens", "decode_tokens")
    return has_names or any(_has_lists(line) for line in sniff.lines[1:])


def _has_lists(line: str) -> bool:
    cells = header_names(line)
    return len(cells) >= 5 and all(
        cell.startswith("[") and cell.endswith("]") for cell in cells[3:5]
    )


def read(path: Path, reading: Reading) -> TraceRows:
    """The requests in the order of the file."""
    found = read_columns(
        path,
        {
            "seconds": Column(
                ("arrival_time",),
                place=0,
                parse=numbers(0, LATEST_US / 1e6),
                wanted="a number of seconds from 0 on",
            ),
            "input": Column(
                ("prefill_tokens",),
                place=3,
                parse=_prompts,
                wanted="a JSON list of at least one whole number",
                is_text=True,
            ),
            "output": Column(
                ("decode_tokens",),
                place=4,
                parse=_outputs,
                wanted="a JSON list of whole numbers",
                is_text=True,
            ),
        },
        reading,
    )
    arrival_us = (found["seconds"] * 1e6).astype(np.int64)
    num_rows = len(arrival_us)
    if reading.horizon_us is not None and (arrival_us > reading.horizon_us).any():
        num_rows = int(np.argmax(arrival_us > reading.horizon_us))
    prompts, outputs = found["input"][:num_rows], found["output"][:num_rows]
    sequences = [_big_endian(*each) for each in zip(prompts, outputs, strict=True)]
    return make_rows(
        arrival_us[:num_rows],
        np.array([len(tokens) for tokens in prompts], np.int64),
        np.array([len(tokens) for tokens in outputs], np.int64),
        segments=common_beginnings(sequences),
    )


def write(rows: TraceRows, path: Path) -> None:
    """Write times and tokens; the tokens are made up, equal where contents are shared."""
    tokens = _made_up_tokens(rows)
    with replacing(path) as written, written.open("w", encoding="utf-8") as file:
        file.write(HEADER + "\n")
        for row, sequence in enumerate(tokens):
            prompt, output = np.split(sequence, [rows.input_len[row]])
            seconds = f"{rows.arrival_us[row] // 10**6}.{rows.arrival_us[row] % 10**6:06}"
            # half a microsecond more, so that cutting to whole ones does not lose one
            file.write(f'{seconds}5,request_{rows.request_id[row]},,"{prompt.tolist()}",')
            file.write(f'"{output.tolist()}"\n')


# --- tokens in cells ------------------------------------------------------------------------------


def _prompts(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    lists, is_good = _outputs(values)
    return lists, is_good & np.array([len(tokens) > 0 for tokens in lists], bool)


def _outputs(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    lists = np.empty(len(values), object)
    is_good = np.zeros(len(values), bool)
    for row, text in enumerate(values):
        tokens = _tokens(text)
        is_good[row] = tokens is not None
        lists[row] = np.zeros(0, np.int64) if tokens is None else tokens
    return lists, is_good


def _tokens(text: str) -> np.ndarray | None:
    try:
        tokens = json.loads(text)
        tokens = [] if tokens is None else tokens
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            return None
        return np.array(tokens, np.int64)
    except (ValueError, RecursionError, OverflowError):
        return None


def _big_endian(prompt: np.ndarray, output: np.ndarray) -> bytes:
    """A sequence as bytes that differ where its tokens do."""
    return np.concatenate([prompt, output]).astype(">i8").tobytes()


# --- shared beginnings ----------------------------------------------------------------------------


def common_beginnings(sequences: list[bytes]) -> Segments:
    """Segments by which any two sequences share exactly the tokens they begin with alike.

    The sequences are of 8 bytes a token. Sorted, those that share a beginning are neighbours, and
    the branches of their tree follow from how much each shares with the one before.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    branches = _Branches()
    branch_of = [NO_BRANCH] * len(order)
    for place, row in enumerate(order):
        is_last = place + 1 == len(order)
        common = 0 if is_last else _num_common(sequences[row], sequences[order[place + 1]])
        branch_of[row] = branches.move_on(common)
    paths = [branches.path(branch) for branch in branch_of]
    numbers = [number for path in paths for number in path]
    return Segments(
        ptr=np.cumsum([0, *(len(path) for path in paths)]),
        content=np.array(numbers, np.int64),
        end=np.array([branches.ends[number] for number in numbers], np.int64),
    )


class _Branches:
    """The tree of common beginnings, grown along the sorted sequences."""

    def __init__(self) -> None:
        self.ends: list[int] = []  # tokens that the sequences of a branch share
        self.parents: list[int] = []
        self.open: list[int] = []  # branches of the sequence at hand, outermost first

    def move_on(self, common: int) -> int:
        """The innermost branch of a sequence that shares `common` tokens with the next one."""
        innermost = self.open[-1] if self.open else NO_BRANCH
        closed = NO_BRANCH
        while self.open and self.ends[self.open[-1]] > common:
            closed = self.open.pop()
            self.parents[closed] = self.open[-1] if self.open else NO_BRANCH
        if common > (self.ends[self.open[-1]] if self.open else 0):
            number = len(self.ends)
            self.ends.append(common)
            self.parents.append(self.open[-1] if self.open else NO_BRANCH)
            if closed != NO_BRANCH:
                self.parents[closed] = number
            self.open.append(number)
            innermost = number if closed == NO_BRANCH else innermost
        return innermost

    def path(self, branch: int) -> list[int]:
        """The branch and all around it, outermost first."""
        path = []
        while branch != NO_BRANCH:
            path.append(branch)
            branch = self.parents[branch]
        return path[::-1]


def _num_common(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second)) // 8
    differ = np.frombuffer(first, np.int64, length) != np.frombuffer(second, np.int64, length)
    return int(np.argmax(differ)) if differ.any() else length


def _made_up_tokens(rows: TraceRows) -> list[np.ndarray]:
    """A sequence for every request with the same common beginnings."""
    segments = segments_of(rows)
    start, chain = chain_numbers(segments)
    longest = np.zeros(int(chain.max(initial=-1)) + 1, np.int64)
    np.maximum.at(longest, chain, segments.end - start)
    base = np.cumsum(longest) - longest
    next_token = int(longest.sum())
    sequences = []
    for row in range(len(rows)):
        part = range(segments.ptr[row], segments.ptr[row + 1])
        shared = [base[chain[each]] + np.arange(segments.end[each] - start[each]) for each in part]
        num_private = int(rows.input_len[row]) + int(rows.output_len[row]) - sum(map(len, shared))
        sequences.append(np.concatenate([*shared, next_token + np.arange(num_private)]))
        next_token += num_private
    return sequences
