"""ServeGen data as cohorts of August 2026, as BLIS's `convert servegen` derives them from a folder.

They represent three half hours of the day or, for reasoning data, one window; clients are spread over the SLO classes
by a random stream with a fixed seed. Source: `sim/workload/servegen.go` of that revision.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.traces.formats.servegen import Client, Lengths, Window, read_clients
from blis_jax.traces.rows import Report
from blis_jax.workload import go_math
from blis_jax.workload.go_random import Stream

SEED = 42
DAY_S, WINDOW_S = 86_400, 600
PERIODS = {"midnight": 0, "morning": 28_800, "afternoon": 50_400}  # first second of the half hour
WINDOWS_OF_PERIOD = 3
CLASSES = ("critical", "standard", "batch", "sheddable", "background")
LEAST_VARIANCE = -1e-10  # below 0 by rounding alone
Document = dict[str, Any]


def cohorts_of(path: Path, report: Report, window_s: int, drain_s: int) -> Document:
    """Return a workload derived from the ServeGen data in a folder.

    Args:
        path: the folder, with a pair of files for each client.
        report: collects the rows that are left out.
        window_s: length of each period in seconds.
        drain_s: seconds without requests between periods.

    Returns:
        The workload as the mapping of a YAML file.

    Raises:
        ConfigError: the data cannot be read, or no client sends requests in the chosen windows.
    """
    clients = read_clients(path, report, keep_idle=True)
    reasons = clients[0].tells_ratio
    made = _of_reasoning(clients, window_s) if reasons else _of_periods(clients, window_s, drain_s)
    cohorts = list(made)
    if not cohorts:
        raise ConfigError(
            f"{path}: no client sends requests in the windows taken; give other chunks"
        )
    category = "reasoning" if reasons else ""
    return {"seed": SEED, "category": category, "cohorts": cohorts, "aggregate_rate": 0.0}


# --- three periods of the day ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Active:
    """A client with the windows in which it sends requests of known lengths."""

    client: Client
    windows: tuple[Window, ...]

    def at(self, time_of_day_s: int) -> list[Window]:
        """Return the windows that begin at this time of day, on any day."""
        return [
            each
            for each in self.windows
            if int(each.start_s * 1e6) // 10**6 % DAY_S == time_of_day_s
        ]


def _of_periods(clients: Sequence[Client], window_s: int, drain_s: int) -> Iterator[Document]:
    stream = Stream(SEED)
    chosen = [start + WINDOW_S * stream.intn(WINDOWS_OF_PERIOD) for start in PERIODS.values()]
    active = [_active(client) for client in clients]
    groups = [
        _by_class([each for each in active if each.at(start_s)], stream) for start_s in chosen
    ]
    for place, name in enumerate(PERIODS):
        start_us = place * (window_s + drain_s) * 10**6
        for slo_class, members in groups[place].items():
            cohort = _of_period(f"{name}-{slo_class}", members, chosen[place])
            if cohort is not None:
                spike = {"start_time_us": start_us, "duration_us": window_s * 10**6}
                cohort["spike"] = spike | cohort["spike"]
                yield cohort | {"slo_class": slo_class}


def _active(client: Client) -> _Active:
    active = []
    for window in client.windows:
        lengths = _lengths_at(client, int(window.start_s))
        if window.rate <= 0 or lengths is None:
            continue
        if None in _fits(lengths):
            raise ConfigError(
                f"chunk {client.number}: the lengths from {lengths.start_s:g} s on fit no lognormal law; leave it out"
            )
        active.append(window)
    return _Active(client, tuple(active))


def _of_period(name: str, members: Sequence[_Active], start_s: int) -> Document | None:
    """Return the cohort of clients that send requests at `start_s`; None if its rate is 0."""
    rate, laws, windows = 0.0, [], []
    for each in members:
        windows += each.at(start_s)
        fitted = _fitted_laws(each.client, start_s)
        if fitted is not None:  # BLIS leaves out the rate of the others, too
            laws.append(fitted)
            rate += _mean([window.rate for window in each.at(start_s)])
    if rate <= 0:
        _left_out(name)
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
        "cv": _total(each.cv for each in known) / len(windows),
        "shape": _total(each.shape for each in fitted) / len(windows),
        "scale": _total(each.scale * 1e6 for each in fitted) / len(windows),
    }


# --- requests that reason -------------------------------------------------------------------------


def _of_reasoning(clients: Sequence[Client], window_s: int) -> Iterator[Document]:
    """Return the cohorts of the window in which most clients send."""
    sending = Counter(
        int(window.start_s / WINDOW_S)
        for client in clients
        for window in client.windows
        if window.rate > 0 and window.start_s < DAY_S
    )
    most = max(sending.values(), default=0)
    start_s = WINDOW_S * min((window for window, n in sending.items() if n == most), default=0)
    known = [client for client in clients if client.reason_ratio]
    ratios = _mean_ratios(known)
    for slo_class, members in _by_class(known, Stream(SEED)).items():
        name = f"reasoning-{slo_class}"
        rate = _total(_rate_at(client, start_s) for client in members)
        laws = [law for law in (_fitted_laws(client, start_s) for client in members) if law]
        if rate <= 0 or not laws:
            _left_out(name)
            continue
        cohort = _cohort(name, len(members), rate, {"process": "poisson"}, laws)
        span = {"start_time_us": 0, "duration_us": window_s * 10**6}
        cohort["spike"] = span | cohort["spike"]
        rounds = {"max_rounds": 1, "think_time_us": 0, "context_growth": ""}
        cohort["reasoning"] = {"reason_ratio_distribution": ratios, "multi_turn": rounds}
        yield cohort | {"slo_class": slo_class, "closed_loop": False}


def _rate_at(client: Client, start_s: int) -> float:
    return next((each.rate for each in client.windows if int(each.start_s) == start_s), 0.0)


def _mean_ratios(clients: Sequence[Client]) -> Document:
    """Return the mean of the clients' distributions of the share of reasoning tokens, in whole percent."""
    weights: dict[int, float] = {}
    for client in clients:
        for ratio, weight in sorted(client.reason_ratio.items()):
            weights[int(ratio * 100)] = weights.get(int(ratio * 100), 0.0) + weight
    params = {str(percent): weight / len(clients) for percent, weight in sorted(weights.items())}
    return {"type": "empirical", "params": params}


# --- both -----------------------------------------------------------------------------------------


Member = TypeVar("Member")


def _by_class(members: Sequence[Member], stream: Stream) -> dict[str, list[Member]]:
    """Return the members by class name, dealt to the classes in turn after a random shuffle."""
    order = stream.shuffled(len(members))
    dealt = {
        name: [members[row] for row in order[place :: len(CLASSES)]]
        for place, name in enumerate(CLASSES)
    }
    return {name: dealt[name] for name in sorted(dealt) if dealt[name]}


def _cohort(
    name: str, population: int, rate: float, arrival: Document, laws: Sequence[Sequence[float]]
) -> Document:
    """Return a cohort with the means of its clients' laws, each of them mu and sigma of prompts, then of answers."""
    mean = [_mean([law[place] for law in laws]) for place in range(4)]
    inputs, outputs = (
        {"type": "lognormal", "params": {"mu": mean[place], "sigma": mean[place + 1]}}
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


def _left_out(name: str) -> None:
    text = f"cohort {name} is left out, as in BLIS: its clients send nothing in the window taken"
    warnings.warn(text, ConfigWarning, stacklevel=2)


def _fitted_laws(client: Client, start_s: int) -> tuple[float, ...] | None:
    """Return mu and sigma of prompts and answers, averaged over the days; None if the data lack them."""
    nearest = _lengths_at(client, start_s)
    if nearest is None:
        return None
    same = [
        each for each in client.lengths if int(each.start_s) % DAY_S == int(nearest.start_s) % DAY_S
    ]
    inputs, outputs = zip(*(_fits(each) for each in same), strict=True)
    prompts, answers = ([fit for fit in fits if fit is not None] for fits in (inputs, outputs))
    if not prompts or not answers:
        return None
    return tuple(
        _mean([fit[part] for fit in fits]) for fits in (prompts, answers) for part in (0, 1)
    )


def _lengths_at(client: Client, start_s: int) -> Lengths | None:
    """Return the last length distribution that begins at or before `start_s`."""
    before = [each for each in client.lengths if int(each.start_s) <= start_s]
    return before[-1] if before else None


def _fits(lengths: Lengths) -> list[tuple[float, float] | None]:
    return [_lognormal(law) for law in (lengths.input_tokens, lengths.output_tokens)]


def _lognormal(law: Mapping[int, float]) -> tuple[float, float] | None:
    """Return mu and sigma of the lengths above 0; None if there are none."""
    weight, logs, squares = 0.0, 0.0, 0.0
    for tokens, share in sorted(law.items()):
        if tokens > 0 and share:
            log = go_math.log(tokens)
            weight += share
            logs += share * log
            squares += share * log * log
    if weight <= 0:
        return None
    mu = logs / weight
    variance = squares / weight - mu * mu
    return (mu, math.sqrt(max(variance, 0.0))) if variance > LEAST_VARIANCE else None


def _mean(values: Sequence[float]) -> float:
    return _total(values) / len(values)


def _total(values: Iterable[float]) -> float:
    """Return the sum of values added in order, which Python's own `sum` rounds differently."""
    total = 0.0
    for value in values:
        total += value
    return total
