"""What vLLM's engine logs of its requests, and the KV blocks that can be worked back from it.

The log is JSON lines with input_toks, output_toks and monotonic queued_ts, first_token_ts, last_token_ts in seconds;
meta.json and timeseries.csv may stand beside them. Where meta.json has no KV blocks, they follow from the logged use.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.lazy import pandas
from blis_jax.traces.measured.run import MeasuredRun, ServerSettings, of_meta
from blis_jax.traces.rows import make_rows

# ticks outside are rounded too coarsely, or requests may be evicted
LEAST_USE, MOST_USE = 0.05, 0.9
LEAST_TICKS = 3


class BlockEstimate(NamedTuple):
    """KV blocks of one instance, or None, and where the number comes from."""

    blocks: int | None
    words: str


def blocks_from_series(
    path: Path,
    columns: Mapping[str, np.ndarray],
    settings: ServerSettings,
    num_fitted: int | None = None,
) -> BlockEstimate:
    """Estimate the KV blocks of an instance: the median over ticks of blocks held ÷ logged use.

    What a request holds is worked out from its measured times: its prompt from the first token on,
    outputs at even gaps until the last. Prompts that are still in prefill are not counted, so
    ticks in which prompts wait are left out. Only the first `num_fitted` requests by arrival are
    looked at, and of the series only the ticks before the next request arrives.
    """
    series = pandas.read_csv(path)
    if not {"t", "kv_cache_pct", "waiting"} <= set(series.columns):
        raise ConfigError(
            f"{path} lacks a column t, kv_cache_pct or waiting; correct it or move it away"
        )
    use = series["kv_cache_pct"].to_numpy(np.float64) / 100.0
    ticks = series["t"].to_numpy(np.float64) + columns["queued_ts"].min()
    fitted, until = _fitted_only(columns, num_fitted)
    is_clear = (use > LEAST_USE) & (use < MOST_USE) & (series["waiting"].to_numpy() == 0)
    is_clear &= ticks < until
    if is_clear.sum() < LEAST_TICKS:
        return BlockEstimate(
            None,
            f"KV blocks are unknown: meta.json states none and the use in {path.name} "
            f"{_why_unknown(use, until)}",
        )
    held = held_blocks(ticks[is_clear], fitted, settings.block_size or 16)
    held /= settings.num_instances or 1
    blocks = round(float(np.median(held / use[is_clear])))
    return BlockEstimate(
        blocks,
        f"KV blocks: {blocks} per instance, estimated from {is_clear.sum()} ticks of {path.name}",
    )


def _fitted_only(
    columns: Mapping[str, np.ndarray], num_fitted: int | None
) -> tuple[dict[str, np.ndarray], float]:
    """Return the columns of the fitted requests, and when the first request that is held out arrives."""
    order = np.argsort(columns["queued_ts"], kind="stable")
    fitted = {name: values[order[:num_fitted]] for name, values in columns.items()}
    held_out = columns["queued_ts"][order][len(fitted["queued_ts"]) :]
    return fitted, float(held_out[0]) if held_out.size else np.inf


def _why_unknown(use: np.ndarray, until: float) -> str:
    if not np.any(use > 0):
        return "is 0 throughout"
    words = "is between 5 % and 90 % without a queue at fewer than three ticks"
    return words if np.isinf(until) else f"{words} before the first request that is held out"


def held_blocks(
    times: np.ndarray, columns: Mapping[str, np.ndarray], block_size: int
) -> np.ndarray:
    """Count the blocks that all running requests hold at each time."""
    first, last = columns["first_token_ts"], columns["last_token_ts"]
    at = times[:, None]
    is_running = (at >= first) & (at <= last)
    share = np.clip((at - first) / np.maximum(last - first, 1e-9), 0.0, 1.0)
    tokens = columns["input_toks"] + share * columns["output_toks"]
    return np.sum(np.where(is_running, np.ceil(tokens / block_size), 0.0), axis=1)


COLUMNS = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")


def read_engine_log(path: Path, num_fitted: int | None) -> MeasuredRun:
    """Read vLLM's engine log: a request arrives when the engine queues it, and its TTFT counts from there."""
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
            why = f"no {error.args[0]}" if isinstance(error, KeyError) else error
            raise ConfigError(
                f"{path}, line {number}: {why}; every line needs numbers named {', '.join(COLUMNS)}"
            ) from None
    if not found:
        raise ConfigError(f"{path} holds no requests; give a file with one JSON object per line")
    return dict(zip(COLUMNS, np.asarray(found).T, strict=True))


def _beside(
    path: Path, columns: Mapping[str, np.ndarray], num_fitted: int | None
) -> tuple[ServerSettings, tuple[str, ...]]:
    """Return settings from meta.json, KV blocks from timeseries.csv if meta.json has none."""
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
    estimate = blocks_from_series(series, columns, settings, num_fitted)
    return dataclasses.replace(settings, total_kv_blocks=estimate.blocks), (estimate.words,)
