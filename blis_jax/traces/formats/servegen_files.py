"""The files of ServeGen data: windows of traffic and of lengths, one pair of files per client."""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import check_regular
from blis_jax.traces.formats.csv_reader import open_text
from blis_jax.traces.rows import LATEST_US, MOST_NAMED, MOST_TOKENS, BadRow, Report


class Window(NamedTuple):
    """Arrivals of one client from `start_s` to the next window."""

    start_s: float
    rate: float  # requests per second
    cv: float
    family: str
    shape: float  # nan where the file does not say


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


def read_clients(path: Path, report: Report) -> list[Client]:
    """The clients that ever send a request."""
    paths = trace_paths(path)
    if not paths:
        raise ConfigError(f"{path} holds no chunk-*-trace.csv; give a folder of ServeGen data")
    clients = []
    for trace in paths:
        windows = _read_windows(trace, report)
        if any(window.rate > 0 for window in windows):
            name = trace.name.replace("-trace.csv", "-dataset.json")
            number = trace.name.removeprefix("chunk-").split("-trace.csv")[0]
            clients.append(Client(number, windows, _read_lengths(trace.with_name(name), report)))
    if not clients:
        raise ConfigError(f"{path}: no client ever sends a request; give other chunks")
    return clients


def trace_paths(path: Path) -> list[Path]:
    """The trace files of a folder, or the one that is given itself."""
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
    shape = float(cells[4]) if len(cells) > 4 and cells[4] else math.nan
    is_possible = 0 <= start < LATEST_US / 1e6 and 0 <= rate < 1e6 and 0 <= cv < math.inf
    if not is_possible:
        raise ValueError
    return Window(start, rate, cv, cells[3], shape)


def _read_lengths(path: Path, report: Report) -> tuple[Lengths, ...]:
    try:
        document = json.loads(check_regular(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}, the lengths of a ServeGen client, does not exist") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); give ServeGen's file unchanged") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not an object of windows; give ServeGen's file unchanged")
    found, bad = [], []
    for start, window in document.items():
        try:
            laws = [
                _law(window[name], low) for name, low in (("input_tokens", 1), ("output_tokens", 0))
            ]
            if all(laws):
                found.append(Lengths(float(start), *laws))
        except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError):
            reason = "not distributions {tokens: probability} of input_tokens and output_tokens"
            bad.append(BadRow(f"{path.name}, window {start[:20]}", reason))
    report.add_bad(len(bad), bad[:MOST_NAMED])
    if not found:
        raise ConfigError(f"{path} has no window with input_tokens and output_tokens")
    return tuple(sorted(found, key=lambda each: each.start_s))


def _law(text: str, low: int) -> dict[int, float]:
    """The dictionary that a string spells; empty if it has no weight."""
    law = {int(tokens): float(weight) for tokens, weight in ast.literal_eval(text.strip()).items()}
    is_possible = all(
        low <= tokens <= MOST_TOKENS and 0 <= weight < math.inf for tokens, weight in law.items()
    )
    if not is_possible:
        raise ValueError
    return law if sum(law.values()) > 0 else {}
