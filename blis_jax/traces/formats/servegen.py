"""ServeGen data: a folder of chunk-<id>-trace.csv and chunk-<id>-dataset.json, one pair per client.

The files describe traffic and list no requests, so requests are drawn: for every client and window gaps of the fitted
family, with the fitted shape and the window's mean rate, and lengths from the distributions of the last dataset window
at or before it. The seed fixes every draw, each client and window has a stream of its own, and times are those of the
trace. Clients and tenants are named as in the reference's import, servegen-chunk-<id> and chunk-<id>; unlike that
import, which uses each client's busiest window for the whole run, windows follow each other here. Classes, sessions and
contents are not in the data, and the reason ratio is not read.
"""

from __future__ import annotations

import ast
import json
import math
import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import check_regular, open_text
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


class Window(NamedTuple):
    """Arrivals of one client from `start_s` to the next window."""

    start_s: float
    rate: float  # requests per second
    cv: float
    family: str
    shape: float  # NaN if the file has none
    scale: float  # s; NaN if the file has none


class Lengths(NamedTuple):
    """Token counts and their probabilities from `start_s` on."""

    start_s: float
    input_tokens: dict[int, float]
    output_tokens: dict[int, float]


@dataclass(frozen=True)
class Client:
    """One client's files."""

    number: str
    windows: tuple[Window, ...]
    lengths: tuple[Lengths, ...]
    reason_ratio: dict[float, float]  # probabilities of shares of reasoning tokens, if any
    tells_ratio: bool  # whether the data have such a column


def read_clients(path: Path, report: Report, *, keep_idle: bool = False) -> list[Client]:
    """Return the clients that send at least one request, or all clients if `keep_idle`."""
    paths = trace_paths(path)
    if not paths:
        raise ConfigError(f"{path} holds no chunk-*-trace.csv; give a folder of ServeGen data")
    clients = []
    for trace in paths:
        windows = _read_windows(trace, report)
        if keep_idle or any(window.rate > 0 for window in windows):
            name = trace.name.replace("-trace.csv", "-dataset.json")
            number = trace.name.removeprefix("chunk-").split("-trace.csv")[0]
            dataset = _read_dataset(trace.with_name(name))
            lengths = _lengths(dataset, name, report)
            if not lengths and not keep_idle:
                raise ConfigError(
                    f"{trace.with_name(name)} has no window with input_tokens and output_tokens"
                )
            tells = any("reason_ratio" in _texts(window) for window in dataset.values())
            clients.append(Client(number, windows, lengths, _ratios(dataset), tells))
    if not clients:
        raise ConfigError(f"{path}: no client ever sends a request; give other chunks")
    return clients


def trace_paths(path: Path) -> list[Path]:
    """Return the trace files of a folder; the path itself if it is a file."""
    if path.is_dir():
        return sorted(path.glob("chunk-*-trace.csv"))
    return [path] if re.fullmatch(r"chunk-.*-trace\.csv", path.name) else []


def _read_windows(path: Path, report: Report) -> tuple[Window, ...]:
    windows, bad = [], []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                windows.append(_window([cell.strip() for cell in line.split(",")]))
            except (ValueError, IndexError):
                reason = "not start, rate, coefficient of variation, family, shape, scale"
                bad.append(BadRow(f"{path.name}, line {number}", reason))
    report.add_bad(len(bad), bad[:MOST_NAMED])
    return tuple(sorted(windows))


def _window(cells: list[str]) -> Window:
    start, rate, cv = (float(cell) for cell in cells[:3])
    shape, scale = (
        float(cells[at]) if len(cells) > at and cells[at] else math.nan for at in (4, 5)
    )
    is_possible = 0 <= start < LATEST_US / 1e6 and 0 <= rate < 1e6 and 0 <= cv < math.inf
    if not is_possible:
        raise ValueError
    return Window(start, rate, cv, cells[3], shape, scale)


def _read_dataset(path: Path) -> dict[str, Any]:
    """Return the windows' length distributions by their first second, as texts."""
    try:
        document = json.loads(check_regular(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}, the lengths of a ServeGen client, does not exist") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); give ServeGen's file unchanged") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not an object of windows; give ServeGen's file unchanged")
    return document


def _lengths(document: dict[str, Any], name: str, report: Report) -> tuple[Lengths, ...]:
    lengths, bad = [], []
    for start, window in document.items():
        try:
            laws = [
                _law(window[name], low) for name, low in (("input_tokens", 1), ("output_tokens", 0))
            ]
            if all(laws):
                lengths.append(Lengths(float(start), *laws))
        except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError):
            reason = "not distributions {tokens: probability} of input_tokens and output_tokens"
            bad.append(BadRow(f"{name}, window {start[:20]}", reason))
    report.add_bad(len(bad), bad[:MOST_NAMED])
    return tuple(sorted(lengths, key=lambda each: each.start_s))


def _ratios(document: dict[str, Any]) -> dict[float, float]:
    """Return the reason-ratio distribution of the first window that has one, in the text order of their seconds."""
    for start in sorted(document):
        try:
            ratios = ast.literal_eval(_texts(document[start]).get("reason_ratio", "{}").strip())
            law = {float(ratio): float(weight) for ratio, weight in ratios.items()}
        except (ValueError, AttributeError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        if law and all(0 <= ratio <= 1 and weight >= 0 for ratio, weight in law.items()):
            return law
    return {}


def _texts(window: object) -> dict[str, str]:
    return window if isinstance(window, dict) else {}


def _law(text: str, low: int) -> dict[int, float]:
    """Return the distribution that a text spells as a dictionary; empty if its weights are all 0."""
    law = {int(tokens): float(weight) for tokens, weight in ast.literal_eval(text.strip()).items()}
    is_possible = all(
        low <= tokens <= MOST_TOKENS and 0 <= weight < math.inf for tokens, weight in law.items()
    )
    if not is_possible:
        raise ValueError
    return law if sum(law.values()) > 0 else {}


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
        texts={"client": "servegen-chunk-" + numbers, "tenant": "chunk-" + numbers},
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
