"""Times of a trace: their unit and origin, time windows, plausibility checks, and delays in place of arrivals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.lazy import pandas
from blis_jax.traces.columns import Check, Column, numbers
from blis_jax.traces.names import DELAYS, with_unit
from blis_jax.traces.rows import DELAY, LATEST_US, NO_CODE, NO_DELAY, UNITS_US, Reading, TraceRows

AUTO = "auto"
TIME_UNITS = (*UNITS_US, AUTO)
# Traces of services hold some requests a second; these limits lie far outside.
MOST_PER_S, MOST_TOKENS_PER_S = 500.0, 1e6
MOST_OF_FRACTIONS_PER_S = 20.0  # where times in ms or below have fractions
QUICK_PER_S, QUICK_S, FEWEST_QUICK = 100.0, 10.0, 20  # rate, s and requests of a hasty trace
LEAST_PER_S, FEWEST_SLOW = 5e-3, 10  # least rate, for this many requests or more
FEWEST_NAMED = 10  # least requests for doubting a column named in µs
USUAL_PER_S = 3.0  # the unit whose rate lies nearest to it is proposed
FIRST_UNIX_S, LAST_UNIX_S = 1e9, 5e9  # seconds since 1970, of 2001 to 2128
LATE_US = 86_400 * 10**6  # a first arrival later than a day
MOST_DATED = 0.5  # share of rows with a date from which a time near 0 is one that was never set
LATE_SPANS = 10  # and later than this many of the trace's spans


@dataclass(frozen=True)
class _Pace:
    """The rate of requests and tokens under an assumed unit of times."""

    unit: str
    rate: float  # requests a second; infinity for all at once
    tokens_per_s: float

    @classmethod
    def of(cls, rows: TraceRows, unit: str) -> _Pace:
        span_s = float(np.ptp(rows.arrival_us)) / 1e6 if len(rows) else 0.0
        if not span_s:
            return cls(unit, math.inf, math.inf)
        tokens = float(rows.input_len.sum(dtype=np.int64) + rows.output_len.sum(dtype=np.int64))
        return cls(unit, (len(rows) - 1) / span_s, tokens / span_s)

    def in_unit(self, unit: str) -> _Pace:
        factor = UNITS_US[self.unit] / UNITS_US[unit]
        return _Pace(unit, self.rate * factor, self.tokens_per_s * factor)


def read_in_unit(
    read: Callable[[Reading], TraceRows], reading: Reading
) -> tuple[TraceRows, Reading]:
    """Return rows in the requested unit of times; with `auto`, in the first plausible unit.

    Args:
        read: function that reads a file's rows with a `Reading`, and stores the used unit there.
        reading: the requested unit and options.

    Returns:
        The rows, and the reading whose report belongs to them.
    """
    if reading.time_unit != AUTO:
        return dated(read(reading), reading), reading
    tried: list[tuple[TraceRows, Reading]] = []
    for unit in (None, *UNITS_US):
        in_unit = replace(reading, time_unit=unit, report=reading.report.copy())
        rows = dated(read(in_unit), in_unit)
        tried.append((rows, in_unit))
        if in_unit.time_unit is None:  # the format fixes the unit
            break
        is_one_moment = tried[0][0].arrival_us.any() and not np.ptp(rows.arrival_us)
        if (
            len(rows) > in_unit.report.num_bad  # a larger unit makes times too large
            and not is_one_moment
            and why_odd(rows, in_unit.time_unit, fewest_slow=2) is None
        ):
            in_unit.report.notes.append(
                f"times are read as {in_unit.time_unit}, the first unit that can be true; --time-unit names another"
            )
            break
    else:
        return max(tried, key=lambda each: len(each[0]))
    return tried[-1]


def dated(rows: TraceRows, reading: Reading) -> TraceRows:
    """Return rows without those whose time was never set, such as 0 among times since 1970, and note how many."""
    at_s = rows.arrival_us / 1e6
    has_date = (at_s >= FIRST_UNIX_S) & (at_s <= LAST_UNIX_S)
    is_unset = at_s < LATE_US / 1e6
    if not is_unset.any() or has_date.sum() < MOST_DATED * len(rows) or DELAY in rows.others:
        return rows
    reading.report.notes.append(
        f"{int(is_unset.sum())} rows have a time near 0, where others have times since 1970: their time was never "
        "set, and they are left out"
    )
    return rows.take(np.flatnonzero(~is_unset))


def remark(rows: TraceRows, unit: str | None) -> str | None:
    """Return a note on implausible times; None for plausible times, or if the format fixes the unit."""
    is_named = unit == "us" and len(rows) < FEWEST_NAMED
    why = None if unit is None or is_named else why_odd(rows, unit)
    if unit is None or why is None:
        return None
    pace = _Pace.of(rows, unit)
    if pace.tokens_per_s > MOST_TOKENS_PER_S and pace.rate <= USUAL_PER_S:
        return f"{why}: no server computes so much; look at the lengths"
    other = _unix_unit(rows, unit) or min(
        (name for name in UNITS_US if name != unit),
        key=lambda name: abs(math.log(pace.in_unit(name).rate / USUAL_PER_S)),
    )
    return (
        f"times are read as {unit}: {why}; if they are {other}, give --time-unit {other} "
        f"({_number(pace.in_unit(other).rate)} requests/s)"
    )


LARGEST_GAP, FEWEST_GAPS = 0.4, 20  # of a trace's span; gaps
HUGE_GAP, FEWEST_FOR_HUGE = 1e4, 4  # times the mean gap, as between two units; gaps
LONG_GAP = 20.0  # times the mean gap where all gaps are drawn alike, beyond any that chance gives


def lonely_gap(rows: TraceRows) -> str | None:
    """Return a note if one gap is a large share of the trace, as between two traces or two units; else None."""
    gaps = np.diff(np.sort(rows.arrival_us)) / 1e6
    if len(gaps) < FEWEST_FOR_HUGE or not gaps.any():
        return None
    place, span = int(np.argmax(gaps)), float(gaps.sum())
    others = (span - float(gaps[place])) / (len(gaps) - 1)
    if len(gaps) < FEWEST_GAPS and gaps[place] < HUGE_GAP * others:
        return None
    if gaps[place] < LARGEST_GAP * span or gaps[place] < LONG_GAP * others:
        return None
    return (
        f"no request arrives for {_number(float(gaps[place]))} s of the trace's {_number(span)} s, between requests "
        f"{place + 1:,} and {place + 2:,}: rates are means over that; --from and --until take a part, and a file "
        "whose times change their unit has to be mended"
    )


def why_odd(rows: TraceRows, unit: str, fewest_slow: int = FEWEST_SLOW) -> str | None:
    """Return why times are implausible in a unit, else None; a low rate counts from `fewest_slow` requests on."""
    pace = _Pace.of(rows, unit)
    if math.isinf(pace.rate):
        return None
    is_too_fast = pace.rate > MOST_PER_S or pace.tokens_per_s > MOST_TOKENS_PER_S
    is_too_slow = pace.rate < LEAST_PER_S and len(rows) >= fewest_slow
    has_fractions = UNITS_US[unit] > 1 and bool(np.any(rows.arrival_us % UNITS_US[unit]))
    is_fast = unit != "s" and has_fractions and pace.rate > MOST_OF_FRACTIONS_PER_S
    is_short = pace.rate > QUICK_PER_S and len(rows) < QUICK_PER_S * QUICK_S
    is_quick = unit == "ms" and is_short and len(rows) >= FEWEST_QUICK
    words = f"{_number(pace.rate)} requests/s and {_number(pace.tokens_per_s)} tokens/s"
    if is_quick and not is_fast:
        return f"{words}, and all of it within {_number(len(rows) / pace.rate)} s"
    if is_too_fast or is_too_slow or is_fast:
        return f"{words}, with fractions of {unit}" if is_fast else words
    if _unix_unit(rows, unit) is not None:
        return f"{words}, and the first looks like a time since 1970"
    return None


def _unix_unit(rows: TraceRows, unit: str) -> str | None:
    """Return another unit in which the first time would be a plausible time since 1970; None if there is none."""
    first = float(rows.arrival_us.min()) / UNITS_US[unit]
    units = (
        name for name in UNITS_US if FIRST_UNIX_S <= first * UNITS_US[name] / 1e6 <= LAST_UNIX_S
    )
    other = next(units, None)
    return None if other == unit else other


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def from_zero(rows: TraceRows) -> tuple[TraceRows, str | None]:
    """Return rows moved to time 0 if they begin long after it, such as times since 1970, and a note on the move."""
    if not len(rows):
        return rows, None
    first = int(rows.arrival_us.min())
    if first < LATE_US or first < LATE_SPANS * np.ptp(rows.arrival_us):
        return rows, None
    moved = replace(rows, arrival_us=rows.arrival_us - first)
    return (
        moved,
        f"the first request comes {first / 86_400e6:,.0f} days after time 0, which is moved to it",
    )


def window(rows: TraceRows, from_s: float | None, until_s: float | None) -> TraceRows:
    """Return the rows that arrive from `from_s` until before `until_s`, in s after the first; `from_s` becomes time 0.

    Raises:
        ConfigError: no request arrives in this window.
    """
    if from_s is None and until_s is None:
        return rows
    low, high = 0.0 if from_s is None else from_s, math.inf if until_s is None else until_s
    if not 0 <= low < high:
        raise ConfigError(
            f"--from must be at least 0 and below --until, got {low:g} and {high:g} (s after the first arrival)"
        )
    after_us = rows.arrival_us - rows.arrival_us.min()
    is_in = (after_us >= low * 1e6) & (after_us < high * 1e6)
    if not is_in.any():
        raise ConfigError(
            f"--from {low:g} --until {high:g}: no request arrives there; the trace lasts "
            f"{int(after_us.max()) / 1e6:,.3f} s"
        )
    kept = rows.take(np.flatnonzero(is_in))
    return replace(kept, arrival_us=after_us[is_in] - round(low * 1e6))


# --- turns that have, in place of an arrival, a delay from the answer to the turn before on -------

Parse = Callable[[Any], tuple[np.ndarray, np.ndarray]]
NOT_BOTH = Check(
    "the arrival is missing, and so is a delay",
    lambda columns: np.logical_or(
        columns["arrival"] != NO_DELAY, columns.get(DELAY, 0) != NO_DELAY
    ),
)


def delay_columns(names: Sequence[str], arrival: Column) -> dict[str, Column]:
    """Return the columns of delays, in the file's unit, and of arrivals, which may be empty; none without delays."""
    named = with_unit(names, DELAYS)
    if named is None:
        return {}
    parse = partial(_or_nothing, numbers(0, LATEST_US))
    delay = Column((named[0],), parse=parse, wanted="a number of at least 0")
    assert arrival.parse is not None
    return {"arrival": arrival._replace(parse=partial(_or_nothing, arrival.parse)), DELAY: delay}


def _or_nothing(parse: Parse, values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    """Parse the non-empty cells; empty cells become NO_DELAY."""
    has_none = (values.isna() | (values.astype(str).str.strip() == "")).to_numpy(bool)
    parsed, is_good = parse(values)
    return np.where(has_none, NO_DELAY, parsed), is_good | has_none


def after_answers(
    rows: TraceRows, columns: Mapping[str, np.ndarray], names: Sequence[str], reading: Reading
) -> TraceRows:
    """Return rows in which each row without an arrival comes, at the earliest, its delay after the turn before.

    Args:
        rows: all rows, with arbitrary arrivals for rows without one.
        columns: the columns of `delay_columns`, as read.
        names: names of the file's columns; the name of the delays may contain their unit, by default that of arrivals.
        reading: collects the notes on rows that are left out.
    """
    named = with_unit(names, DELAYS)
    unit = (named[1] if named else None) or reading.time_unit or "s"
    has_time, has_delay = columns["arrival"] != NO_DELAY, columns[DELAY] != NO_DELAY
    if num_idle := int(np.sum(has_time & (columns[DELAY] > 0))):
        reading.report.notes.append(
            f"{num_idle} rows have an arrival and a delay: the arrival is taken"
        )
    waits = ~has_time & has_delay
    if not waits.any():
        return rows
    if named and named[1] is None:
        reading.report.notes.append(
            f"delays are read as {unit}, as the arrivals; a column delay_ms or delay_s says another unit"
        )
    delay_us = np.where(waits, np.rint(columns[DELAY] * UNITS_US[unit]), NO_DELAY).astype(np.int64)
    arrival_us, is_good = rows.arrival_us.copy(), np.ones(len(rows), bool)
    latest: dict[int, int] = {}  # the last turn of a session so far
    for row in np.lexsort((rows.round_index, rows.session)).tolist():
        session = int(rows.session[row])
        if waits[row]:
            is_good[row] = session != NO_CODE and session in latest
            arrival_us[row] = latest.get(session, 0) + delay_us[row]
        if is_good[row]:
            latest[session] = int(arrival_us[row])
    if num_alone := int(np.sum(~is_good)):
        reading.report.notes.append(
            f"{num_alone} rows have a delay, but no earlier turn of a session that they could follow: they are left out"
        )
    placed = replace(rows, arrival_us=arrival_us, others={**rows.others, DELAY: delay_us})
    return placed.take(np.flatnonzero(is_good))
