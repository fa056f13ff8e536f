"""ServeGen data as cohorts of August 2026, as BLIS derives them from a folder for `convert servegen` and for a run.

They represent three half hours of the day or, for reasoning data, one window; clients are spread over the SLO classes
by a random stream. Source: `sim/workload/servegen.go` of that revision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random import Stream
from blis_jax.workload.servegen.fits import (
    Fit,
    Fitted,
    each_day,
    fitted,
    last_before,
    mean,
    means,
    total,
)
from blis_jax.workload.servegen.reading import (
    DAY_S,
    Chunk,
    Lengths,
    Stamp,
    Texts,
    Window,
    chunks_of,
    lengths_of,
    ratios_of,
    read_texts,
    read_windows,
    stamp_of,
)

WINDOW_S = 600
PERIODS = {"midnight": 0, "morning": 28_800, "afternoon": 50_400}  # first second of the half hour
WINDOWS_OF_PERIOD = 3
CLASSES = ("critical", "standard", "batch", "sheddable", "background")
KEPT_FOLDERS = 4  # whose content a process keeps for further seeds
Document = dict[str, Any]


class Cohorts(NamedTuple):
    """A workload as the mapping of a YAML file, and what is told of it."""

    document: Document
    notes: tuple[str, ...]


def cohorts_of(path: Path, seed: int, window_s: int, drain_s: int) -> Cohorts:
    """Return a workload derived from the ServeGen data in a folder.

    Args:
        path: the folder, with a pair of files for each client.
        seed: of the stream that chooses windows and spreads clients over the classes.
        window_s: length of each period in seconds.
        drain_s: seconds without requests between periods.

    Raises:
        ConfigError: the data cannot be read, or no client sends requests in the chosen windows.
    """
    folder = _read(path, stamp_of(path))
    notes = list(folder.notes)
    if folder.reasons:
        cohorts = list(_of_reasoning(folder.clients, seed, window_s, notes))
    else:
        cohorts = list(_of_periods(folder.clients, seed, window_s, drain_s, notes))
    if not cohorts:
        raise ConfigError(
            f"{path}: no client sends requests in the windows taken; give other chunks"
        )
    category = "reasoning" if folder.reasons else ""
    document = {"seed": seed, "category": category, "cohorts": cohorts, "aggregate_rate": 0.0}
    return Cohorts(document, tuple(notes))


def notes_of(path: Path) -> tuple[str, ...]:
    """Return what is left out of a folder's data, whatever the seed, one sentence each.

    Raises:
        ConfigError: the data cannot be read.
    """
    return _read(path, stamp_of(path)).notes


def tells_reasoning(path: Path) -> bool:
    """Return whether the data are of requests that reason, which those of the first client decide.

    Raises:
        ConfigError: the data cannot be read.
    """
    return _read(path, stamp_of(path)).reasons


def classes_of(path: Path) -> tuple[str, ...]:
    """Return the SLO classes that a folder's clients may have.

    Raises:
        ConfigError: there are no clients.
    """
    return CLASSES[: len(chunks_of(path))]


# --- the data -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Client:
    """The data of one client."""

    number: str
    windows: tuple[Window, ...]
    fits: tuple[Fitted, ...]  # by time
    ratios: dict[float, float] = field(default_factory=dict)  # of reasoning tokens


class _Folder(NamedTuple):
    """The data of all clients."""

    clients: tuple[_Client, ...]
    reasons: bool
    notes: tuple[str, ...]


@lru_cache(maxsize=KEPT_FOLDERS)
def _read(path: Path, _stamp: Stamp) -> _Folder:
    """Return a folder's data; where requests reason, files that cannot be read count as empty, as in BLIS."""
    chunks, notes = chunks_of(path), list[str]()
    texts = read_texts(chunks[0].dataset)
    reasons = any("reason_ratio" in window for window in texts.values())
    clients = [_client(chunk, reasons, notes) for chunk in chunks]
    return _Folder(tuple(clients), reasons, tuple(notes))


def _client(chunk: Chunk, reasons: bool, notes: list[str]) -> _Client:
    windows: tuple[Window, ...] = ()
    texts: Texts = {}
    lengths: tuple[Lengths, ...] = ()
    with _tolerated(reasons, notes):
        windows = read_windows(chunk.trace, notes.append)
    with _tolerated(reasons, notes):
        texts = read_texts(chunk.dataset)
        lengths = lengths_of(texts, chunk.dataset, notes.append)
    ratios = ratios_of(texts) if reasons else {}
    return _Client(chunk.number, windows, tuple(map(fitted, lengths)), ratios)


@contextmanager
def _tolerated(is_tolerant: bool, notes: list[str]) -> Iterator[None]:
    """Turn a refusal into a note if `is_tolerant`."""
    try:
        yield
    except ConfigError as error:
        if not is_tolerant:
            raise
        notes.append(f"left out, as in BLIS: {error}")


# --- three periods of the day ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Active:
    """A client with the windows in which it sends requests of known lengths."""

    client: _Client
    windows: tuple[Window, ...]

    def at(self, time_of_day_s: int) -> list[Window]:
        """Return the windows that begin at this time of day, on any day."""
        return [
            each
            for each in self.windows
            if int(each.start_s * 1e6) // 10**6 % DAY_S == time_of_day_s
        ]


def _of_periods(
    clients: Sequence[_Client], seed: int, window_s: int, drain_s: int, notes: list[str]
) -> Iterator[Document]:
    stream = Stream(seed)
    chosen = [start + WINDOW_S * stream.intn(WINDOWS_OF_PERIOD) for start in PERIODS.values()]
    active = [_active(client) for client in clients]
    groups = [
        _by_class([each for each in active if each.at(start_s)], stream) for start_s in chosen
    ]
    for place, name in enumerate(PERIODS):
        start_us = place * (window_s + drain_s) * 10**6
        for slo_class, members in groups[place].items():
            cohort = _of_period(f"{name}-{slo_class}", members, chosen[place], notes)
            if cohort is not None:
                spike = {"start_time_us": start_us, "duration_us": window_s * 10**6}
                cohort["spike"] = spike | cohort["spike"]
                yield cohort | {"slo_class": slo_class}


def _active(client: _Client) -> _Active:
    active = []
    for window in client.windows:
        fit = last_before(client.fits, int(window.start_s))
        if window.rate <= 0 or fit is None:
            continue
        if fit.prompts is None or fit.answers is None:
            raise ConfigError(
                f"chunk {client.number}: the lengths from {fit.start_s} s on fit no lognormal law; leave it out"
            )
        active.append(window)
    return _Active(client, tuple(active))


def _of_period(
    name: str, members: Sequence[_Active], start_s: int, notes: list[str]
) -> Document | None:
    """Return the cohort of clients that send requests at `start_s`; None if its rate is 0."""
    rate, laws, windows = 0.0, [], []
    for each in members:
        windows += each.at(start_s)
        days = each_day(each.client.fits, start_s)
        if not days:  # BLIS leaves out the rate, too
            continue
        prompts, answers = _both(days)
        if answers:  # whose number BLIS takes for both
            laws.append(means(prompts, len(answers)) + means(answers, len(answers)))
        rate += mean([window.rate for window in each.at(start_s)])
    if rate <= 0:
        notes.append(_left_out(name))
        return None
    arrival = _mean_arrival(windows)
    return _cohort(name, len(members), rate, arrival, laws)


def _mean_arrival(windows: Sequence[Window]) -> Document:
    """Return the most frequent arrival process; cv, shape and scale are means, with 0 for windows without them."""
    known = [each for each in windows if each.family.lower() in ("gamma", "weibull")]
    votes = Counter(each.family.lower() for each in known)
    fitted = [each for each in known if each.shape > 0 and each.scale > 0]
    return {
        "process": "weibull" if votes["weibull"] > votes["gamma"] else "gamma",
        "cv": total(each.cv for each in known if each.cv > 0) / len(windows),
        "shape": total(each.shape for each in fitted) / len(windows),
        "scale": total(each.scale * 1e6 for each in fitted) / len(windows),
    }


# --- requests that reason -------------------------------------------------------------------------


def _of_reasoning(
    clients: Sequence[_Client], seed: int, window_s: int, notes: list[str]
) -> Iterator[Document]:
    """Return the cohorts of the window in which most clients send."""
    sending = Counter(
        int(window.start_s / WINDOW_S)
        for client in clients
        for window in client.windows
        if window.rate > 0 and -WINDOW_S < window.start_s < DAY_S
    )
    most = max(sending.values(), default=0)
    start_s = WINDOW_S * min((window for window, n in sending.items() if n == most), default=0)
    known = [client for client in clients if client.ratios]
    ratios = _mean_ratios(known)
    for slo_class, members in _by_class(known, Stream(seed)).items():
        name = f"reasoning-{slo_class}"
        rate = total(_rate_at(client, start_s) for client in members)
        laws = [law for law in (_fitted_law(client, start_s) for client in members) if law]
        if rate <= 0 or not laws:
            notes.append(_left_out(name))
            continue
        cohort = _cohort(name, len(members), rate, {"process": "poisson"}, laws)
        span = {"start_time_us": 0, "duration_us": window_s * 10**6}
        cohort["spike"] = span | cohort["spike"]
        rounds = {"max_rounds": 1, "think_time_us": 0, "context_growth": ""}
        cohort["reasoning"] = {"reason_ratio_distribution": ratios, "multi_turn": rounds}
        yield cohort | {"slo_class": slo_class, "closed_loop": False}


def _rate_at(client: _Client, start_s: int) -> float:
    return next((each.rate for each in client.windows if int(each.start_s) == start_s), 0.0)


def _fitted_law(client: _Client, start_s: int) -> tuple[float, ...]:
    """Return mu and sigma of prompts and of answers, each averaged over the days; nothing if the data lack them."""
    prompts, answers = _both(each_day(client.fits, start_s))
    if not prompts or not answers:
        return ()
    return means(prompts, len(prompts)) + means(answers, len(answers))


def _mean_ratios(clients: Sequence[_Client]) -> Document:
    """Return the mean of the clients' distributions of the share of reasoning tokens, in whole percent."""
    weights: dict[int, float] = {}
    for client in clients:
        for ratio, weight in sorted(client.ratios.items()):
            weights[int(ratio * 100)] = weights.get(int(ratio * 100), 0.0) + weight
    params = {str(percent): weight / len(clients) for percent, weight in sorted(weights.items())}
    return {"type": "empirical", "params": params}


# --- both -----------------------------------------------------------------------------------------


def _both(days: Sequence[Fitted]) -> tuple[list[Fit], list[Fit]]:
    """Return the laws of prompts, and those of answers, of the days that have them."""
    return (
        [day.prompts for day in days if day.prompts is not None],
        [day.answers for day in days if day.answers is not None],
    )


Member = TypeVar("Member")


def _by_class(members: Sequence[Member], stream: Stream) -> dict[str, list[Member]]:
    """Return the members by class name, dealt to the classes in turn after a random shuffle."""
    order = stream.shuffled(len(members))
    dealt = {
        name: [members[row] for row in order[place :: len(CLASSES)]]
        for place, name in enumerate(CLASSES)
    }
    return {name: dealt[name] for name in sorted(dealt) if dealt[name]}


WITHOUT_DATA = (  # laws of prompts and answers
    {"type": "gaussian", "params": {"mean": 512, "std_dev": 128, "min": 1, "max": 32768}},
    {"type": "gaussian", "params": {"mean": 128, "std_dev": 32, "min": 1, "max": 32768}},
)


def _cohort(
    name: str, population: int, rate: float, arrival: Document, laws: Sequence[Sequence[float]]
) -> Document:
    """Return a cohort with the means of its clients' laws, each of them mu and sigma of prompts, then of answers."""
    inputs, outputs = WITHOUT_DATA
    if laws:
        numbers = [mean([law[place] for law in laws]) for place in range(4)]
        inputs, outputs = (
            {"type": "lognormal", "params": {"mu": numbers[place], "sigma": numbers[place + 1]}}
            for place in (0, 2)
        )
    return {
        "id": name,
        "population": population,
        "streaming": True,
        "rate_fraction": 1.0,
        "arrival": arrival,
        "input_distribution": inputs,
        "output_distribution": outputs,
        "spike": {"trace_rate": rate},
    }


def _left_out(name: str) -> str:
    return f"cohort {name} is left out, as in BLIS: its clients send nothing in the window taken"
