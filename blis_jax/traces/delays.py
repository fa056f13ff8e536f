"""Turns in a table that have, in place of an arrival, a delay from the answer to the turn before on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from blis_jax.lazy import pandas
from blis_jax.traces.columns import Check, Column, numbers
from blis_jax.traces.names import DELAYS, with_unit
from blis_jax.traces.rows import DELAY, LATEST_US, NO_CODE, NO_DELAY, UNITS_US, Reading, TraceRows

Parse = Callable[[Any], tuple[np.ndarray, np.ndarray]]
NOT_BOTH = Check(
    "the arrival is missing, and so is a delay",
    lambda columns: np.logical_or(
        columns["arrival"] != NO_DELAY, columns.get(DELAY, 0) != NO_DELAY
    ),
)


def delay_columns(names: Sequence[str], arrival: Column) -> dict[str, Column]:
    """Return the column of delays, in the file's unit, and that of arrivals, which may then be empty."""
    named = with_unit(names, DELAYS)
    if named is None:
        return {}
    parse = partial(_or_nothing, numbers(0, LATEST_US))
    delay = Column((named[0],), parse=parse, wanted="a number of at least 0")
    assert arrival.parse is not None
    return {"arrival": arrival._replace(parse=partial(_or_nothing, arrival.parse)), DELAY: delay}


def _or_nothing(parse: Parse, values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    """Parse the cells that hold something; NO_DELAY stands for the others."""
    has_none = (values.isna() | (values.astype(str).str.strip() == "")).to_numpy(bool)
    parsed, is_good = parse(values)
    return np.where(has_none, NO_DELAY, parsed), is_good | has_none


def after_answers(
    rows: TraceRows, columns: Mapping[str, np.ndarray], names: Sequence[str], reading: Reading
) -> TraceRows:
    """Return rows of which those without an arrival come, at the earliest, their delay after the turn before.

    Args:
        rows: with any arrival where they have none.
        columns: those of `delay_columns` as they were read.
        names: of the file's columns; that of the delays may say their unit, else it is that of the arrivals.
        reading: told of what is left out.
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
