"""What every trace format is read into: columns by request, and a report on what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.workload.contents import Segments

if TYPE_CHECKING:
    from jaxtyping import Int, Int32, Int64

NO_CODE = -1  # no session, no prefix group
_WIDE = ("request_id", "timeout_us")  # columns of 64 bits
MOST_NAMED = 10  # malformed rows that are named
LATEST_US = 2**60  # arrivals from here on would overflow a clock's sums
MOST_TOKENS = 2**31 - 1
# Classes of the first version of the reference's workload files, which it renames so.
OLD_CLASSES = {"realtime": "critical", "interactive": "standard"}


@dataclass(frozen=True)
class TraceRows:
    """The requests of a trace, by arrival once `read_trace` returns them."""

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

    def take(self, rows: Int[np.ndarray, " taken"]) -> TraceRows:
        """Some requests, in the order of `rows`."""
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
    """Rows with what the format lacks filled in: no class, tenant, client, session or prefix.

    `texts` are columns of names: tenant, client, session, prefix_group, model; empty means none.
    """
    num_rows = len(arrival_us)
    filled: dict[str, Any] = {
        name: np.zeros(num_rows, np.int32)
        for name in ("slo_class", "tenant", "client", "round_index", "prefix_len", "model")
    }
    filled["session"] = filled["prefix_group"] = np.full(num_rows, NO_CODE, np.int32)
    filled["request_id"] = np.arange(num_rows)
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
    """Indices and names by first use; where `has_none`, the empty name is NO_CODE."""
    import pandas

    codes, names = pandas.factorize(np.asarray(values, object))
    codes = codes.astype(np.int32)
    listed = [str(name) for name in names]
    if has_none and "" in listed:
        empty = listed.index("")
        codes = np.where(codes == empty, NO_CODE, codes - (codes > empty)).astype(np.int32)
        listed.pop(empty)
    return codes, tuple(listed) if listed or has_none else ("",)


def by_arrival(rows: TraceRows) -> TraceRows:
    """The rows by time; those of one microsecond stay in the order of the file."""
    if not np.any(np.diff(rows.arrival_us) < 0):
        return rows
    return rows.take(np.argsort(rows.arrival_us, kind="stable"))


def class_index(name: str) -> int:
    """Index of an SLO class by name, empty or old names included; -1 if there is no such class."""
    name = OLD_CLASSES.get(name, name)
    return SLO_CLASSES.index(name) if name in SLO_CLASSES else -1


class BadRow(NamedTuple):
    """A row that cannot be used."""

    place: str  # "line 3", with the file's name where there are several
    reason: str


@dataclass
class Report:
    """What was met while reading."""

    num_bad: int = 0
    first_bad: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_bad(self, num_bad: int, first: Iterable[BadRow]) -> None:
        """Count malformed rows; `first` need not hold more than MOST_NAMED of them."""
        self.num_bad += num_bad
        room = MOST_NAMED - len(self.first_bad)
        self.first_bad += list(first)[: max(room, 0)]

    def lines(self) -> list[str]:
        """The malformed rows as a block of text, nothing if there are none."""
        if not self.num_bad:
            return []
        plural = "row is" if self.num_bad == 1 else "rows are"
        left = self.num_bad - len(self.first_bad)
        lines = [f"{self.num_bad} malformed {plural} left out:"]
        lines += [f"  {row.place}: {row.reason}" for row in self.first_bad]
        return lines + ([f"  and {left} more"] if left else [])

    def refuse_bad(self, path: Any) -> None:
        """What --strict asks for: one malformed row is too many."""
        if self.num_bad:
            first = self.first_bad[0]
            rows = "row" if self.num_bad == 1 else "rows"
            raise ConfigError(
                f"{path} has {self.num_bad} malformed {rows}, the first at {first.place} "
                f"({first.reason}); correct the file, or leave out --strict to skip such rows"
            )


@dataclass
class Reading:
    """What a reader is asked for besides the file, and where it reports."""

    limit: int | None = None  # rows to read at most; malformed ones do not count
    seed: int = 0  # for formats that describe rather than list requests
    block_size: int = 512  # tokens of a hash block
    horizon_us: int | None = None
    header: str | None = None  # a TraceV2 header that is not beside its rows
    report: Report = field(default_factory=Report)
