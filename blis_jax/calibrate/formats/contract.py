"""What the result file of a benchmark client is read into, and the checks that all clients share.

A reader of such a file is a module with `NAME`, `matches(document)` and `read(document, source)`,
which gives one `Benchmark` for each run in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.settings import ServerSettings
from blis_jax.errors import ConfigError, shortened
from blis_jax.traces.rows import make_rows

TO_MS = {"s": 1e3, "sec": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


class Load(NamedTuple):
    """What a client sent; NaN where its file is silent."""

    num_requests: float = math.nan
    rate_per_s: float = math.nan  # stated; NaN where the answers set the pace
    input_tokens: float = math.nan  # mean
    output_tokens: float = math.nan  # mean


@dataclass(frozen=True)
class Summary:
    """Figures of a run whose requests the file does not have."""

    tool: str
    figures: Mapping[tuple[str, str], float]  # by latency (ttft_ms) and statistic (p99), ms
    lacking: str  # what is not in the file, and where it can be had
    load: Load
    settings: ServerSettings = field(default_factory=ServerSettings)


class Benchmark(NamedTuple):
    """One run in a file, with the words that tell it from the others there."""

    label: str
    read: Callable[[], MeasuredRun | Summary]


@dataclass
class Sent:
    """Requests as a client saw them, one entry a request; NaN where it does not know."""

    start_s: list[float] = field(default_factory=list)  # sent, on any clock
    input_tokens: list[float] = field(default_factory=list)
    output_tokens: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)  # from sent to the last token
    num_failed: int = 0
    cached_tokens: float = 0.0  # of the prompts, found in the server's prefix cache

    def add(self, start_s: float, tokens: tuple[float, float], ttft_s: float, e2e_s: float) -> None:
        """One request that was answered; `tokens` of its prompt and its output."""
        if not (math.isfinite(start_s) and all(count >= 1 for count in tokens)):
            self.num_failed += 1
            return
        self.start_s.append(start_s)
        self.input_tokens.append(tokens[0])
        self.output_tokens.append(tokens[1])
        is_streamed = ttft_s > 0 and (tokens[1] == 1 or e2e_s > ttft_s)
        self.ttft_s.append(ttft_s if is_streamed else math.nan)
        self.e2e_s.append(e2e_s if is_streamed else math.nan)

    def run(self, source: str, settings: ServerSettings, notes: Sequence[str] = ()) -> MeasuredRun:
        """The requests as a measured run.

        Raises:
            ConfigError: no request was answered, or none was streamed.
        """
        if not self.start_s:
            raise ConfigError(f"{source} has no request that was answered; give another run")
        if np.all(np.isnan(self.ttft_s)):
            raise ConfigError(
                f"{source} has no time of a first token: the client did not stream; measure again "
                "with streaming"
            )
        start = np.asarray(self.start_s)
        rows = make_rows(
            np.round(1e6 * (start - start.min())),
            np.asarray(self.input_tokens),
            np.asarray(self.output_tokens),
        )
        return MeasuredRun(
            rows,
            1e6 * np.asarray(self.ttft_s),
            1e6 * np.asarray(self.e2e_s),
            settings,
            (*notes, *self._remarks()),
        )

    def _remarks(self) -> list[str]:
        remarks = []
        if self.num_failed:
            remarks.append(
                f"{self.num_failed} of {self.num_failed + len(self.start_s)} requests have failed or "
                "lack their lengths: they are left out, though they may have cost the server time"
            )
        share = self.cached_tokens / sum(self.input_tokens)
        if share > 0.01:
            remarks.append(
                f"the server had {100 * share:.0f} % of the prompt tokens in its prefix cache, but the "
                "file does not say which prompts begin alike: the fit computes all of them, so a "
                "prefill token will seem too cheap"
            )
        return remarks


def closed_loop(limit: float | None) -> str:
    """The remark on a client that waits for answers before it sends on."""
    most = "" if limit is None or not math.isfinite(limit) else f" (at most {limit:.0f} open)"
    return (
        f"the client waited for answers before it sent on{most}: requests are replayed at the times at "
        "which they were sent, as if these did not depend on the server"
    )


def at(document: Any, *names: str) -> Any:
    """The value at the end of a way through mappings; None where the way ends before."""
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def number(value: Any, what: str) -> float:
    """A number, NaN for none; `what` it is, and where, is said if it is something else."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what} is {shortened(value)}; give a number or leave it out")
    return float(value)


def stated(values: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """The figures that a file has: those that are no NaN."""
    return {key: value for key, value in values.items() if math.isfinite(value)}
