"""A CSV with arrival_us (or arrival_s), input_tokens, output_tokens, ttft_ms and e2e_ms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.traces.rows import make_rows

if TYPE_CHECKING:
    import pandas


def read(path: Path) -> MeasuredRun:
    """Rows with an empty latency only arrive."""
    table = read_table(path)
    unit = next((unit for unit in ("us", "s") if f"arrival_{unit}" in table), None)
    wanted = ["input_tokens", "output_tokens", "ttft_ms", "e2e_ms"]
    lacking = [name for name in wanted if name not in table]
    if unit is None or lacking:
        raise ConfigError(
            f"{path} has no column {lacking[0] if lacking else 'arrival_us'}; needed are arrival_us or "
            f"arrival_s, {', '.join(wanted)}"
        )
    numbers = {name: _numbers(path, table, name) for name in [f"arrival_{unit}", *wanted]}
    arrival = numbers[f"arrival_{unit}"] * (1e6 if unit == "s" else 1.0)
    rows = make_rows(
        np.round(arrival - arrival.min()), numbers["input_tokens"], numbers["output_tokens"]
    )
    return MeasuredRun(rows, 1e3 * numbers["ttft_ms"], 1e3 * numbers["e2e_ms"])


def read_table(path: Path) -> pandas.DataFrame:
    """The columns of a CSV; empty cells stay empty texts."""
    import pandas

    input_files.read_text(path, "a measured run")
    try:
        return pandas.read_csv(path, keep_default_na=False, skipinitialspace=True)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read as CSV ({error}); correct the file") from None


def _numbers(path: Path, table: pandas.DataFrame, name: str) -> np.ndarray:
    import pandas

    values = pandas.to_numeric(table[name].replace("", np.nan), errors="coerce").to_numpy(
        np.float64
    )
    may_lack = name in ("ttft_ms", "e2e_ms")
    bad = np.flatnonzero((np.isnan(values) & ~may_lack) | (values < 0))
    if bad.size:
        raise ConfigError(
            f"{path}, line {bad[0] + 2}: {name} is {table[name].iloc[bad[0]]!r}; give a number of at "
            "least 0"
        )
    return values
