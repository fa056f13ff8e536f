"""The rows into which every trace format is read, as columns by request; the report on bad rows; and the request
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.types import OLD_CLASSES, SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.lazy import pandas
from blis_jax.workload.contents import Segments, fold_segments, ranks
from blis_jax.workload.table import LATEST_US as LATEST_US
from blis_jax.workload.table import RequestTable, WorkloadNames, tenants_in_order

if TYPE_CHECKING:
    from jaxtyping import Int, Int32, Int64


NO_CODE = -1  # no session, no prefix group
_WIDE = ("request_id", "timeout_us")  # columns of 64 bits
# a further column: the prefix_length of a row, which counts for its group alone if it is the first
ROW_PREFIX = "row_prefix"
# a further column: µs from the answer to a session's turn until this one arrives; NO_DELAY where it comes by itself
DELAY, NO_DELAY = "delay_us", -1
ADAPTER = "adapter"  # a further column: the LoRA adapter that a request names, empty for none
MOST_NAMED = 10  # malformed rows that are named
MOST_TOKENS = 2**31 - 1
MANY_SINGLE = 0.05  # of the requests, which have one output token
UNITS_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}  # µs of a unit of time


@dataclass(frozen=True)
class TraceRows:
    """The requests of a trace, in order of arrival when returned by `read_trace`."""

    arrival_us: Int64[np.ndarray, " request"]
    input_len: Int32[np.ndarray, " request"]  # prompt tokens, shared prefix included
    output_len: Int32[np.ndarray, " request"]
    slo_class: Int32[np.ndarray, " request"]  # index into SLO_CLASSES; 0 where none is given
    tenant: Int32[np.ndarray, " request"]  # index into tenant_names
    client: Int32[np.ndarray, " request"]  # index into client_names
    session: Int32[np.ndarray, " request"]  # index into session_names, NO_CODE for none
    round_index: Int32[np.ndarray, " request"]  # turn within the session
    prefix_group: Int32[np.ndarray, " request"]  # index into prefix_group_names, NO_CODE for none
    prefix_len: Int32[np.ndarray, " request"]  # prompt tokens shared with the group
    request_id: Int64[np.ndarray, " request"]  # number in the reference's request_<number>
    timeout_us: Int64[np.ndarray, " request"]  # from arrival to deadline, 0 for none
    model: Int32[np.ndarray, " request"]  # index into model_names
    file_row: Int32[np.ndarray, " request"]  # place among the rows of the file
    tenant_names: tuple[str, ...] = ("",)
    client_names: tuple[str, ...] = ("",)
    model_names: tuple[str, ...] = ("",)  # empty: the model of the instances
    session_names: tuple[str, ...] = ()
    prefix_group_names: tuple[str, ...] = ()
    segments: Segments | None = None  # contents that the trace itself names
    # columns of the file that change nothing, by the names of TraceV2 of August
    others: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival_us)

    @property
    def tells_what_is_shared(self) -> bool:
        """Return whether the trace itself says which prompts have a common beginning."""
        return self.segments is not None or bool((self.prefix_len > 0).any())

    def take(self, rows: Int[np.ndarray, " taken"]) -> TraceRows:
        """Return the requests at the given rows, in their order."""
        columns = {name: getattr(self, name)[rows] for name in PER_REQUEST}
        segments = None if self.segments is None else self.segments.take(rows)
        others = {name: values[rows] for name, values in self.others.items()}
        return replace(self, **columns, segments=segments, others=others)


PER_REQUEST = tuple(
    each.name
    for each in fields(TraceRows)
    if not each.name.endswith(("_names", "segments", "others"))
)


def make_rows(
    arrival_us: np.ndarray,
    input_len: np.ndarray,
    output_len: np.ndarray,
    texts: Mapping[str, np.ndarray] | None = None,
    segments: Segments | None = None,
    **columns: np.ndarray,
) -> TraceRows:
    """Return rows, with columns that the format lacks filled in: no class, tenant, client, session or prefix.

    `texts` are columns of names: tenant, client, session, prefix_group, model; empty means none.
    """
    num_rows = len(arrival_us)
    filled: dict[str, Any] = {
        name: np.zeros(num_rows, np.int32)
        for name in ("slo_class", "tenant", "client", "round_index", "prefix_len", "model")
    }
    filled["session"] = filled["prefix_group"] = np.full(num_rows, NO_CODE, np.int32)
    filled["request_id"] = np.arange(num_rows)
    filled["file_row"] = np.arange(num_rows, dtype=np.int32)
    filled["timeout_us"] = np.zeros(num_rows, np.int64)
    for name, values in (texts or {}).items():
        has_none = name in ("session", "prefix_group")
        filled[name], filled[f"{name}_names"] = _encoded(values, has_none=has_none)
    filled |= {
        name: values.astype(np.int64 if name in _WIDE else np.int32)
        for name, values in columns.items()
    }
    return TraceRows(
        arrival_us=np.asarray(arrival_us, np.int64),
        input_len=np.asarray(input_len, np.int32),
        output_len=np.asarray(output_len, np.int32),
        segments=segments,
        **filled,
    )


def _encoded(values: np.ndarray, *, has_none: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the names' indices by first use, and the names; if `has_none`, the empty name has the index NO_CODE."""
    codes, names = pandas.factorize(np.asarray(values, object))
    codes = codes.astype(np.int32)
    listed = [str(name) for name in names]
    if has_none and "" in listed:
        empty = listed.index("")
        codes = np.where(codes == empty, NO_CODE, codes - (codes > empty)).astype(np.int32)
        listed.pop(empty)
    return codes, tuple(listed) if listed or has_none else ("",)


def number_turns(rows: TraceRows) -> TraceRows:
    """Return the rows with the turns of each session numbered by time; 0 without a session."""
    order = np.lexsort((np.arange(len(rows)), rows.arrival_us, rows.session))
    session = rows.session[order]
    begins = np.concatenate([[True], session[1:] != session[:-1]])[: len(order)]
    position = np.arange(len(order))
    turn = np.empty(len(order), np.int32)
    turn[order] = position - np.maximum.accumulate(np.where(begins, position, 0))
    return replace(rows, round_index=np.where(rows.session == NO_CODE, np.int32(0), turn))


def sessions_of_clients(rows: TraceRows, notes: list[str]) -> TraceRows:
    """Return rows in which each session has one client, with a note if clients use the same session names."""
    has_one = rows.session != NO_CODE
    pairs = rows.client.astype(np.int64) * (int(rows.session.max(initial=0)) + 1) + rows.session
    codes, kept = pandas.factorize(pairs[has_one])
    if len(kept) == len(np.unique(rows.session[has_one])):
        return rows
    notes.append(
        "several clients have a session of one name: each client's is taken as a session of its own"
    )
    session = np.full(len(rows), NO_CODE, np.int32)
    session[has_one] = codes
    first = np.flatnonzero(has_one)[np.unique(codes, return_index=True)[1]]
    names = tuple(
        f"{rows.client_names[rows.client[row]]}/{rows.session_names[rows.session[row]]}"
        for row in first.tolist()
    )
    return replace(rows, session=session, session_names=names)


def by_arrival(rows: TraceRows) -> TraceRows:
    """Return the rows by time; rows of the same microsecond stay in the order of the file."""
    if not np.any(np.diff(rows.arrival_us) < 0):
        return rows
    return rows.take(np.argsort(rows.arrival_us, kind="stable"))


def class_index(name: str) -> int:
    """Return the index of an SLO class by name, empty or old names included; −1 if there is no such class."""
    name = OLD_CLASSES.get(name, name)
    return SLO_CLASSES.index(name) if name in SLO_CLASSES else -1


class BadRow(NamedTuple):
    """A row that cannot be used."""

    place: str  # "line 3", with the file's name where there are several
    reason: str


@dataclass
class Report:
    """The notes and the bad rows, collected while a file is read."""

    num_bad: int = 0
    first_bad: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)  # columns of the file, where it has a header
    unread: dict[str, None] = field(default_factory=dict)  # columns of the file that are not read

    def add_unread(self, names: Iterable[str]) -> None:
        """Add columns that have no effect, in the order of the file."""
        self.unread |= dict.fromkeys(names)

    def add_bad(self, num_bad: int, first: Iterable[BadRow]) -> None:
        """Add a number of malformed rows; `first` need not hold more than MOST_NAMED of them."""
        self.num_bad += num_bad
        room = MOST_NAMED - len(self.first_bad)
        self.first_bad += list(first)[: max(room, 0)]

    def copy(self) -> Report:
        """Return an independent copy of the report."""
        return replace(
            self, first_bad=list(self.first_bad), notes=list(self.notes), read=list(self.read),
            unread=dict(self.unread),
        )  # fmt: skip

    def lines(self) -> list[str]:
        """Return the malformed rows as a block of text, empty if there are none."""
        if not self.num_bad:
            return []
        plural = "row is" if self.num_bad == 1 else "rows are"
        left = self.num_bad - len(self.first_bad)
        lines = [f"{self.num_bad} malformed {plural} left out:"]
        lines += [f"  {row.place}: {row.reason}" for row in self.first_bad]
        return lines + ([f"  and {left} more"] if left else [])

    def refuse_bad(self, path: Path, instead: str = "leave out --strict to skip such rows") -> None:
        """Refuse a trace that has a malformed row, as --strict asks for."""
        if self.num_bad:
            raise ConfigError(f"{path} has {self.bad_in_words()}; correct the file, or {instead}")

    def bad_in_words(self) -> str:
        """Return a phrase with the number of malformed rows and the first of them."""
        first, rows = self.first_bad[0], "row" if self.num_bad == 1 else "rows"
        return f"{self.num_bad} malformed {rows}, the first at {first.place} ({first.reason})"


@dataclass
class Reading:
    """The options with which a file is read, and the report on it."""

    limit: int | None = None  # rows to read at most; malformed ones do not count
    seed: int = 0  # for formats that describe rather than list requests
    block_size: int | None = None  # tokens of a hash block; the format's if None
    horizon_us: int | None = None
    header: str | None = None  # a TraceV2 header that is not beside its rows
    stage: int | None = None  # number of a run in a benchmark file with several
    # of UNITS_US; a format with a variable unit stores the unit it used
    time_unit: str | None = None
    report: Report = field(default_factory=Report)

    def unit_us(self, usual: str) -> float:
        """Return the µs per unit of the file's times: of the requested unit, else of the unit `usual`."""
        self.time_unit = self.time_unit or usual
        return UNITS_US[self.time_unit]


def to_table(rows: TraceRows, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """Return trace rows as a request table, the form that `simulate` accepts.

    Args:
        rows: requests by arrival.
        block_size: tokens of a KV block of the engine, `ClusterConfig.block_size_in_tokens`.

    Returns:
        The table, in which shared contents are nodes of KV blocks; and the texts behind its codes, with the rows'
        deadlines.
    """
    code, names = tenants_in_order(rows.tenant_names)
    folded = fold_segments(segments_of(rows), rows.input_len, block_size)
    table = RequestTable(
        arrival_us=rows.arrival_us,
        input_len=rows.input_len,
        output_len=rows.output_len,
        slo_class=rows.slo_class,
        tenant=code[rows.tenant],
        client=rows.client,
        session=rows.session,
        round_index=rows.round_index,
        tie_rank=_tie_rank(rows),
        path_nodes=folded.path_nodes,
        prompt_key=folded.prompt_key,
        node_start=folded.node_start,
        node_blocks=folded.node_blocks,
    )
    texts = WorkloadNames(
        names,
        rows.prefix_group_names,
        rows.request_id,
        _deadlines(rows),
        session_names=rows.session_names,
        models=models_of(rows),
        adapters=rows.others.get(ADAPTER),
    )
    return table, texts


def _deadlines(rows: TraceRows) -> np.ndarray | None:
    """Return each request's deadline in µs, 0 for none; None if no request has one."""
    has_one = rows.timeout_us > 0
    return np.where(has_one, rows.arrival_us + rows.timeout_us, 0) if has_one.any() else None


def num_repeated(rows: TraceRows) -> int:
    """Return how many rows repeat the arrival, lengths and session of an earlier row."""
    keys = np.stack([rows.arrival_us, rows.input_len, rows.output_len, rows.session], axis=1)
    return len(rows) - len(np.unique(keys, axis=0))


def repeated_ids(num_rows: int) -> str:
    """Return a note on rows that have the id of another row."""
    return (
        f"{num_rows} rows repeat the request_id of another row; each is a request of its own: if they are retries, "
        "take out the ones that came to nothing"
    )


def single_tokens(output_len: np.ndarray) -> str | None:
    """Return a note if many requests have one output token and therefore no TPOT."""
    num_single = int(np.count_nonzero(output_len == 1))
    if not num_single or num_single < MANY_SINGLE * len(output_len):
        return None
    of_whom = "there is none" if num_single == len(output_len) else "it is of the others"
    return f"{num_single} requests have one output token, so no gap between tokens and no TPOT: {of_whom}"


def models_of(rows: TraceRows) -> np.ndarray | None:
    """Return the model that each request names, text `[request]`; None if no request names one."""
    return np.array(rows.model_names, object)[rows.model] if any(rows.model_names) else None


def segments_of(rows: TraceRows) -> Segments:
    """Return the shared contents that the trace states, else the shared prefixes of its groups."""
    if rows.segments is not None:
        return rows.segments
    has_prefix = (rows.prefix_group != NO_CODE) & (rows.prefix_len > 0)
    return Segments(
        ptr=np.concatenate([[0], np.cumsum(has_prefix)]),
        content=rows.prefix_group[has_prefix].astype(np.int64),
        end=rows.prefix_len[has_prefix].astype(np.int64),
    )


_MOST_DIGITS = 19  # of 2^62
_POWERS = np.uint64(10) ** np.arange(_MOST_DIGITS, dtype=np.uint64)


def _tie_rank(rows: TraceRows) -> np.ndarray:
    """Return each row's rank by arrival, then by the reference's request id as text."""
    num_digits = np.maximum(np.searchsorted(_POWERS, rows.request_id, side="right"), 1)
    aligned = rows.request_id.astype(np.uint64) * _POWERS[_MOST_DIGITS - num_digits]
    return ranks(np.lexsort((num_digits, aligned, rows.arrival_us)))
