"""What vLLM's engine recorded of a benchmark: JSON lines with input_toks, output_toks and monotonic
queued_ts, first_token_ts, last_token_ts in seconds, with meta.json and timeseries.csv beside them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.settings import ServerSettings, of_meta
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.traces.rows import make_rows

COLUMNS = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")


def read(path: Path, num_fitted: int | None) -> MeasuredRun:
    """Arrivals are the times at which the engine queued a request, TTFT counts from there."""
    columns = _json_lines(path)
    first = columns["queued_ts"].min()
    rows = make_rows(
        np.round(1e6 * (columns["queued_ts"] - first)),
        columns["input_toks"],
        columns["output_toks"],
    )
    settings, notes = _beside(path, columns, num_fitted)
    return MeasuredRun(
        rows,
        1e6 * (columns["first_token_ts"] - columns["queued_ts"]),
        1e6 * (columns["last_token_ts"] - columns["queued_ts"]),
        settings,
        notes,
    )


def _json_lines(path: Path) -> dict[str, np.ndarray]:
    found: list[list[float]] = []
    for number, line in enumerate(input_files.read_text(path, "a measured run").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            found.append([float(entry[name]) for name in COLUMNS])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path}, line {number}: {_reason(error)}; every line needs numbers named "
                f"{', '.join(COLUMNS)}"
            ) from None
    if not found:
        raise ConfigError(f"{path} holds no requests; give a file with one JSON object per line")
    return dict(zip(COLUMNS, np.asarray(found).T, strict=True))


def _reason(error: Exception) -> str:
    return f"no {error.args[0]}" if isinstance(error, KeyError) else str(error)


def _beside(
    path: Path, columns: Mapping[str, np.ndarray], num_fitted: int | None
) -> tuple[ServerSettings, tuple[str, ...]]:
    """Settings from meta.json, KV blocks from timeseries.csv if meta.json has none."""
    meta = path.parent / "meta.json"
    if not meta.is_file():
        return ServerSettings(), (f"no meta.json beside {path.name}: give the server's settings",)
    document = input_files.read_json(meta, "the server's settings, or move it away")
    if not isinstance(document, dict):
        raise ConfigError(f"{meta} holds no settings by name; correct it or move it away")
    settings = of_meta(document)
    series = path.parent / "timeseries.csv"
    if settings.total_kv_blocks is not None or not series.is_file():
        return settings, ()
    from blis_jax.calibrate.kv_series import blocks_from_series

    estimate = blocks_from_series(series, columns, settings, num_fitted)
    return dataclasses.replace(settings, total_kv_blocks=estimate.blocks), (estimate.words,)
