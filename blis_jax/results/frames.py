"""A run's tables as pandas data frames, under names and in units that can be read without the engine's codes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.reference import CLASS_NAMES
from blis_jax.results.records import TTFT_PARTS, Status
from blis_jax.results.request_lives.travels import E2E_PARTS, e2e_parts_us

if TYPE_CHECKING:
    import pandas as pd

    from blis_jax.results.records import RequestRecords, RunRecord

TABLES = ("requests", "steps", "instances", "preemptions")
# of these columns -1 says that it never happened
_NUMBERS_OR_NONE = (
    "admitted",
    "instance",
    "scheduled_step_idx",
    "finished_step_idx",
    "token_step_idx",
)


def to_dataframe(record: RunRecord, table: str = "requests") -> pd.DataFrame:
    """One table of a run; the index numbers its rows and bears the name of what a row is.

    Where the record has -1 for what never happened, the frame has NaN (times) or `<NA>` (numbers of instances and
    steps), so that means and percentiles leave it out.
    """
    if table not in TABLES:
        allowed = ", ".join(TABLES)
        raise ConfigError(
            f"a record has no table {table!r}; it has {allowed}{closest(table, TABLES)}"
        )
    frame = _plain(getattr(record, table), table[:-1])
    return _readable(frame, record.requests) if table == "requests" else frame


def _plain(rows: object, name: str) -> pd.DataFrame:
    import pandas as pd

    fields = [field.name for field in dataclasses.fields(rows)]  # type: ignore[arg-type]
    columns = {field: np.asarray(getattr(rows, field)) for field in fields}
    frame = pd.DataFrame({field: values for field, values in columns.items() if values.ndim == 1})
    return frame.rename_axis(name)


def _readable(frame: pd.DataFrame, requests: RequestRecords) -> pd.DataFrame:
    """Codes as words, what never happened as missing, and a column for each part of TTFT and of E2E."""
    import pandas as pd

    for name in (*frame.columns,):
        if name.endswith("_us") and name != "arrival_us":
            frame[name] = frame[name].where(frame[name] >= 0, np.nan)
        elif name in _NUMBERS_OR_NONE:
            frame[name] = frame[name].astype("Int64").where(frame[name] >= 0)
    frame["slo_class"] = pd.Categorical.from_codes(frame["slo_class"], list(CLASS_NAMES))
    words = [status.name.lower() for status in Status]
    frame["status"] = pd.Categorical.from_codes(frame["status"], words)
    for time, parts, values in (
        ("ttft", TTFT_PARTS, requests.ttft_parts_us),
        ("e2e", E2E_PARTS, e2e_parts_us(requests)),
    ):
        has_time = frame[f"{time}_us"].notna().to_numpy()
        for part, column in zip(parts, values.T, strict=True):
            frame[f"{time}_{part}_us"] = np.where(has_time, column, np.nan)
    return frame
