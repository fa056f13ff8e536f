"""Read ServeGen data by BLIS's rules: a folder of chunk-<id>-trace.csv and chunk-<id>-dataset.json, a pair per client.

A trace has rows of start, rate, coefficient of variation, family, shape and scale; a dataset has the distributions of
lengths by the second from which they hold, each as the text of a dictionary. Source: `sim/workload/servegen.go`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from blis_jax.errors import ConfigError
from blis_jax.files.input_files import check_regular, open_text

FEWEST_CELLS, ALL_CELLS = 4, 6  # of a row; the last two are shape and scale
MOST_NAMED = 3  # lines of a note
LONGEST_SHOWN = 40  # characters of a refused text
LARGEST_INT = 2**63
DAY_S = 86_400


class Chunk(NamedTuple):
    """The files of one client."""

    number: str
    trace: Path
    dataset: Path


class Window(NamedTuple):
    """Arrivals of one client from `start_s` to the next window."""

    start_s: float
    rate: float  # requests per second
    cv: float
    family: str
    shape: float  # 0 if the file has none
    scale: float  # s; 0 if the file has none


class Lengths(NamedTuple):
    """Token counts and their probabilities from `start_s` on."""

    start_s: float
    input_tokens: dict[int, float]
    output_tokens: dict[int, float]


Texts = Mapping[str, Mapping[str, str]]  # of the distributions, by second and by name


# --- files ----------------------------------------------------------------------------------------


def trace_paths(path: Path) -> list[Path]:
    """Return the trace files of a folder; the path itself if it is a file."""
    if path.is_dir():
        return sorted(path.glob("chunk-*-trace.csv"))
    return [path] if re.fullmatch(r"chunk-.*-trace\.csv", path.name) else []


def chunks_of(path: Path) -> list[Chunk]:
    """Return the files of every client of a folder, or of a trace file, ordered by name.

    Raises:
        ConfigError: there is no trace.
    """
    chunks = []
    for trace in trace_paths(path):
        number = trace.name.removeprefix("chunk-").removesuffix("-trace.csv")
        chunks.append(Chunk(number, trace, trace.with_name(f"chunk-{number}-dataset.json")))
    if not chunks:
        raise ConfigError(f"{path} holds no chunk-*-trace.csv; give a folder of ServeGen data")
    return chunks


Stamp = tuple[tuple[str, int, int], ...]


def stamp_of(path: Path) -> Stamp:
    """Return names, sizes and times of a folder's files: what is kept of the files is as old as these."""
    files = [file for chunk in chunks_of(path) for file in chunk[1:] if file.is_file()]
    states = [(file.name, file.stat()) for file in files]
    return tuple((name, state.st_size, state.st_mtime_ns) for name, state in states)


def digest_of(path: Path) -> str:
    """Return a digest of the content of a folder's files.

    Raises:
        ConfigError: there is no trace.
    """
    digest = hashlib.sha256()
    for chunk in chunks_of(path):
        for file in chunk[1:]:
            digest.update(file.name.encode())
            digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()[:16]


# --- traces ---------------------------------------------------------------------------------------


def rows_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of every line that is not empty."""
    with open_text(path) as file:
        reader = csv.reader(file)
        for cells in reader:
            if cells:
                yield reader.line_num, [cell.strip() for cell in cells]


def window_of(cells: list[str]) -> Window:
    """Return the window in a row's cells; a shape or scale that is missing or no number makes both 0.

    Raises:
        ValueError: there are too few cells, or start, rate and coefficient of variation are not numbers.
    """
    if len(cells) < FEWEST_CELLS:
        raise ValueError
    start, rate, cv = map(number, cells[:3])
    try:
        shape, scale = map(number, cells[4:ALL_CELLS])
    except ValueError:
        shape = scale = 0.0
    return Window(start, rate, cv, cells[3], shape, scale)


def read_windows(path: Path, note: Callable[[str], None]) -> tuple[Window, ...]:
    """Return a trace's windows in the order of the file; rows that are not a window are left out, with a note.

    Raises:
        ConfigError: the file cannot be read, rows differ in length, or a window has no time.
    """
    windows, bad, width = [], list[int](), 0
    try:
        for line, cells in rows_of(path):
            width = width or len(cells)
            if len(cells) != width:
                raise ConfigError(
                    f"{path}, line {line}: has {len(cells)} cells, but the first line has {width}; give all rows alike"
                )
            try:
                windows.append(window_of(cells))
            except ValueError:
                bad.append(line)
                continue
            if not math.isfinite(windows[-1].start_s):
                raise ConfigError(f"{path}, line {line}: starts at {cells[0]}, allowed is a number")
    except (OSError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}); give ServeGen's file") from None
    if bad:
        lines = ", ".join(map(str, bad[:MOST_NAMED]))
        more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
        note(f"{path.name}: left out as in BLIS, for they are no window: line {lines}{more}")
    return tuple(windows)


# --- datasets -------------------------------------------------------------------------------------


def read_dataset(path: Path) -> dict[str, Any]:
    """Return a dataset's content by the second from which it holds.

    Raises:
        ConfigError: the file is missing, or is not a JSON object.
    """
    try:
        document = json.loads(check_regular(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path}, the lengths of a ServeGen client, does not exist") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); give ServeGen's file unchanged") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not an object of windows; give ServeGen's file unchanged")
    return document


def read_texts(path: Path) -> Texts:
    """Return a dataset's distributions as texts, by second and by name.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    texts = {}
    for start, window in read_dataset(path).items():
        kept = {} if window is None else window
        if not isinstance(kept, dict) or any(
            not isinstance(text, str | None) for text in kept.values()
        ):
            raise ConfigError(
                f"{path}, window {start[:LONGEST_SHOWN]}: is not an object of texts; give ServeGen's file unchanged"
            )
        texts[start] = {name: text or "" for name, text in kept.items()}
    return texts


def laws_of(texts: Mapping[str, str], place: str) -> tuple[dict[int, float], dict[int, float]]:
    """Return the distributions of prompts and of answers; `place` begins error messages.

    Raises:
        ConfigError: a text is not such a distribution.
    """
    try:
        return law_of(texts.get("input_tokens", "")), law_of(texts.get("output_tokens", ""))
    except ValueError:
        raise ConfigError(
            f"{place}: input_tokens and output_tokens are not both the text of a distribution such as "
            "{100: 0.5, 200: 0.5}; correct the file, or leave the window out"
        ) from None


def lengths_of(dataset: Texts, path: Path, note: Callable[[str], None]) -> tuple[Lengths, ...]:
    """Return the distributions of a dataset, the file `path`, by time; windows without lengths are left out.

    Raises:
        ConfigError: a window has something else.
    """
    lengths: dict[int, Lengths] = {}
    for start, texts in dataset.items():
        try:
            start_s = int(number(start))
        except (ValueError, OverflowError):
            note(f"{path.name}: window {start[:LONGEST_SHOWN]!r} is left out as in BLIS: no number")
            continue
        if all(texts.get(name, "") not in ("", "{}") for name in ("input_tokens", "output_tokens")):
            laws = laws_of(texts, f"{path}, window {start[:LONGEST_SHOWN]}")
            lengths[start_s] = Lengths(start_s, *laws)
    return tuple(lengths[start_s] for start_s in sorted(lengths))


def number(text: str) -> float:
    """Return the number that a text spells.

    Raises:
        ValueError: it spells none, or one too large.
    """
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(text)
    return value


def law_of(text: str) -> dict[int, float]:
    """Return the probabilities of token counts that a text spells as a dictionary, fractions of counts cut off.

    Raises:
        ValueError: the text is no such dictionary, or it is empty.
    """
    law = {}
    for key, value in _pairs(text):
        tokens = number(key)
        if not abs(tokens) < LARGEST_INT:
            raise ValueError(key)
        law[int(tokens)] = number(value)
    return law


def ratios_of(texts: Texts) -> dict[float, float]:
    """Return the distribution of the share of reasoning tokens of the first window that has one, seconds as texts."""
    for start in sorted(texts):
        try:
            pairs = list(_pairs(texts[start].get("reason_ratio", "")))
            law = {number(key.strip('"')): number(value) for key, value in pairs}
        except ValueError:
            continue
        if all(0 <= ratio <= 1 and not weight < 0 for ratio, weight in law.items()):
            return law
    return {}


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(text[:LONGEST_SHOWN])
    pairs = [pair for pair in text[1:-1].split(",") if pair.strip()]
    if not pairs:
        raise ValueError(text[:LONGEST_SHOWN])
    for pair in pairs:
        key, colon, value = pair.partition(":")
        if not colon:
            raise ValueError(pair[:LONGEST_SHOWN])
        yield key.strip(), value.strip()
