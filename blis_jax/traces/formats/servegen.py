"""ServeGen data: a folder of chunk-<id>-trace.csv and chunk-<id>-dataset.json, one pair per client.

The files describe traffic and list no requests, so requests are drawn: for every client and window gaps of the fitted
family, with the fitted shape and the window's mean rate, and lengths from the distributions of the last dataset window
at or before it. The seed fixes every draw, each client and window has a stream of its own, and times are those of the
trace. Clients and tenants are named as in the reference's import, servegen-chunk-<id> and chunk-<id>; unlike that
import, which uses each client's busiest window for the whole run, windows follow each other here. Classes, sessions and
contents are not in the data, and the reason ratio is not read.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.traces.options import SERVEGEN_STREAM
from blis_jax.traces.read import Sniff
from blis_jax.traces.rows import (
    LATEST_US,
    MOST_NAMED,
    MOST_TOKENS,
    BadRow,
    Reading,
    Report,
    TraceRows,
    make_rows,
)
from blis_jax.workload.servegen.clients import CLIENT, TENANT
from blis_jax.workload.servegen.reading import (
    Lengths,
    Window,
    chunks_of,
    law_of,
    read_dataset,
    rows_of,
    trace_paths,
    window_of,
)


@dataclass(frozen=True)
class Client:
    """One client's files."""

    number: str
    windows: tuple[Window, ...]
    lengths: tuple[Lengths, ...]


def read_clients(path: Path, report: Report) -> list[Client]:
    """Return the clients that send at least one request.

    Raises:
        ConfigError: the data cannot be read, or no client sends a request.
    """
    clients = []
    for chunk in chunks_of(path):
        windows = _read_windows(chunk.trace, report)
        if any(window.rate > 0 for window in windows):
            lengths = _read_lengths(chunk.dataset, report)
            if not lengths:
                raise ConfigError(
                    f"{chunk.dataset} has no window with input_tokens and output_tokens"
                )
            clients.append(Client(chunk.number, windows, lengths))
    if not clients:
        raise ConfigError(f"{path}: no client ever sends a request; give other chunks")
    return clients


def _read_windows(path: Path, report: Report) -> tuple[Window, ...]:
    windows, bad = [], []
    for line, cells in rows_of(path):
        if not any(cells):
            continue
        try:
            windows.append(_possible(window_of(cells)))
        except ValueError:
            reason = "not start, rate, coefficient of variation, family, shape, scale"
            bad.append(BadRow(f"{path.name}, line {line}", reason))
    report.add_bad(len(bad), bad[:MOST_NAMED])
    return tuple(sorted(windows))


def _possible(window: Window) -> Window:
    """Return the window; ValueError if no such requests can be drawn."""
    is_in_time = 0 <= window.start_s < LATEST_US / 1e6
    if not (is_in_time and 0 <= window.rate < MOST_RATE and 0 <= window.cv < math.inf):
        raise ValueError
    return window


def _read_lengths(path: Path, report: Report) -> tuple[Lengths, ...]:
    lengths, bad = [], []
    for start, window in read_dataset(path).items():
        try:
            laws = [
                _law(window[name], low) for name, low in (("input_tokens", 1), ("output_tokens", 0))
            ]
            if all(laws):
                lengths.append(Lengths(float(start), *laws))
        except (ValueError, KeyError, TypeError, AttributeError):
            reason = "not distributions {tokens: probability} of input_tokens and output_tokens"
            bad.append(BadRow(f"{path.name}, window {start[:20]}", reason))
    report.add_bad(len(bad), bad[:MOST_NAMED])
    return tuple(sorted(lengths, key=lambda each: each.start_s))


def _law(text: str, low: int) -> dict[int, float]:
    """Return the distribution that a text spells as a dictionary; empty if it is, or if its weights are all 0."""
    if text.strip() == "{}":
        return {}
    law = law_of(text)
    is_possible = all(
        low <= tokens <= MOST_TOKENS and 0 <= weight < math.inf for tokens, weight in law.items()
    )
    if not is_possible:
        raise ValueError
    return law if sum(law.values()) > 0 else {}


MOST_RATE = 1e6  # requests/s of a client
USUAL_WINDOW_S = 600.0  # of a trace with a single window
MOST_REQUESTS = 20_000_000  # drawn without --limit; more would be a mistake
MOST_SHAPE, LEAST_SHAPE = 1e3, 0.05  # of a Weibull law solved from its coefficient of variation


def matches(sniff: Sniff) -> bool:
    """Return whether the path is a folder with trace files, or such a file."""
    return bool(trace_paths(sniff.path))


def read(path: Path, reading: Reading) -> TraceRows:
    """Return the requests of all clients by arrival."""
    return draw(read_clients(path, reading.report), reading)


class _Piece(NamedTuple):
    """Requests of one client in one window."""

    client: int
    arrival_us: np.ndarray
    input_len: np.ndarray
    output_len: np.ndarray


def draw(clients: Sequence[Client], reading: Reading) -> TraceRows:
    """Return the requests of all clients, drawn window by window until there are enough."""
    expected = sum(
        window.rate * length
        for client in clients
        for window, length in zip(client.windows, _lengths_of(client), strict=True)
        if reading.horizon_us is None or window.start_s * 1e6 <= reading.horizon_us
    )
    if reading.limit is None and expected > MOST_REQUESTS:
        raise ConfigError(
            f"the ServeGen data describe about {expected:.3g} requests, at most "
            f"{MOST_REQUESTS:.3g} are drawn at once; give --limit or --horizon"
        )
    pieces = _draw_pieces(clients, reading)
    client = np.concatenate([np.full(len(piece.arrival_us), piece.client) for piece in pieces])
    arrival_us = np.concatenate([piece.arrival_us for piece in pieces])
    order = np.argsort(arrival_us, kind="stable")[: reading.limit]
    numbers = np.array([each.number for each in clients], object)[client[order]]
    return make_rows(
        arrival_us[order],
        np.concatenate([piece.input_len for piece in pieces])[order],
        np.concatenate([piece.output_len for piece in pieces])[order],
        texts={"client": CLIENT + numbers, "tenant": TENANT + numbers},
    )


def _draw_pieces(clients: Sequence[Client], reading: Reading) -> list[_Piece]:
    """Return drawn pieces in the order of time, until no later window can contain one of the first `limit` requests."""
    nothing = np.zeros(0, np.int64)
    pieces = [_Piece(0, nothing, nothing, nothing)]
    for start_s, windows in groupby(_by_start(clients), key=lambda each: each[0]):
        start_us = start_s * 1e6
        num_before = sum(int(np.count_nonzero(piece.arrival_us < start_us)) for piece in pieces)
        is_past = reading.horizon_us is not None and start_us > reading.horizon_us
        if is_past or (reading.limit is not None and num_before >= reading.limit):
            break
        pieces += [_draw_window(clients, *each, reading.seed) for each in windows]
    return pieces


def _by_start(clients: Sequence[Client]) -> list[tuple[float, int, int, float]]:
    """Return (start in s, window's index, client's index, length in s) of all windows with requests, by time."""
    return sorted(
        (window.start_s, index, number, length)
        for number, client in enumerate(clients)
        for index, (window, length) in enumerate(
            zip(client.windows, _lengths_of(client), strict=True)
        )
        if window.rate > 0
    )


def _lengths_of(client: Client) -> list[float]:
    """Return the length of each window in seconds; the last one is as long as the one before."""
    starts = [window.start_s for window in client.windows]
    lengths = [after - start for start, after in pairwise(starts)]
    return [*lengths, lengths[-1] if lengths else USUAL_WINDOW_S]


def _draw_window(
    clients: Sequence[Client], start_s: float, index: int, number: int, length_s: float, seed: int
) -> _Piece:
    """Return the drawn requests of client `number` in its window `index`."""
    client = clients[number]
    window = client.windows[index]
    purpose = [seed, SERVEGEN_STREAM, zlib.crc32(client.number.encode()), round(start_s)]
    draws = np.random.Generator(np.random.PCG64(purpose))
    at_once = max(int(window.rate * length_s * 1.1) + 10, 16)
    times, last = [], 0.0
    while last < length_s:
        times.append(last + np.cumsum(_gaps(draws, window, at_once)))
        last = float(times[-1][-1])
    arrival_s = np.concatenate(times)
    arrival_s = arrival_s[arrival_s < length_s]
    starts = [each.start_s for each in client.lengths]
    law = client.lengths[max(bisect_right(starts, start_s) - 1, 0)]
    return _Piece(
        number,
        ((start_s + arrival_s) * 1e6).astype(np.int64),
        _draw_tokens(draws, law.input_tokens, len(arrival_s)),
        _draw_tokens(draws, law.output_tokens, len(arrival_s)),
    )


def _gaps(draws: np.random.Generator, window: Window, count: int) -> np.ndarray:
    """Return the seconds between requests, with mean 1 ÷ rate."""
    family = window.family.lower()
    has_shape = 0 < window.shape < math.inf
    if family == "gamma" and (has_shape or window.cv > 0):
        shape = window.shape if has_shape else window.cv**-2
        return draws.gamma(shape, 1 / (shape * window.rate), count)
    if family == "weibull" and (has_shape or window.cv > 0):
        shape = window.shape if has_shape else _weibull_shape(window.cv)
        return draws.weibull(shape, count) / (window.rate * math.gamma(1 + 1 / shape))
    return draws.exponential(1 / window.rate, count)


def _weibull_shape(cv: float) -> float:
    """Return the Weibull shape whose coefficient of variation is `cv`; the coefficient falls as the shape grows."""
    low, high = LEAST_SHAPE, MOST_SHAPE
    for _ in range(100):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)
        low, high = (middle, high) if math.expm1(log_ratio) > cv**2 else (low, middle)
    return math.sqrt(low * high)


def _draw_tokens(draws: np.random.Generator, law: dict[int, float], count: int) -> np.ndarray:
    tokens = np.array(list(law), np.int64)
    bounds = np.cumsum(list(law.values()))
    at = np.searchsorted(bounds, draws.random(count) * bounds[-1], side="right")
    return tokens[np.minimum(at, len(tokens) - 1)]
