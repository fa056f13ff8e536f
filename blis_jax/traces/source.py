"""A trace as the source of a study's requests: one run, one run per window, or one run per seed if anything is
drawn.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import progress
from blis_jax.cluster.adapters import with_adapters
from blis_jax.cluster.named_policies import draws
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import split_name
from blis_jax.traces.options import scale_time
from blis_jax.traces.read import Trace, TraceOptions, read_trace
from blis_jax.traces.rows import ADAPTER, DELAY, TraceRows, models_of, to_table
from blis_jax.workload.spec import MeasureSpec
from blis_jax.workload.table import with_models, with_timeouts

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.workload.table import RequestTable

STREAM = "recorded"  # in place of the stream that requests are drawn from
USUAL_SEEDS = (42, 43, 44)  # where something is drawn
MOST_WINDOWS = 10_000


@dataclass(frozen=True)
class TraceSource:
    """A trace and its reading options; a number distinguishes its runs, as the seed does for a workload.

    With windows the number is the window's, from 1 on; else it is the seed for the draws of the trace's options and of
    policies, and one run is enough if nothing is drawn.
    """

    path: Path
    options: TraceOptions
    num_windows: int | None = None
    pace: float = 1.0  # factor on arrival times, besides that of the options
    _kept: dict[int, Trace] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse windows without requests; this reads the trace."""
        if self.num_windows is None:
            return
        if not 2 <= self.num_windows <= MOST_WINDOWS:
            raise ConfigError(
                f"--trace-windows: got {self.num_windows}, allowed is 2 to {MOST_WINDOWS}"
            )
        if self.num_requests < self.num_windows:
            raise ConfigError(
                f"--trace-windows {self.num_windows}: {self.path} has {self.num_requests} "
                f"request{'s' * (self.num_requests != 1)}, and every window needs some; {self._fewer()}"
            )
        counts = np.bincount(self._windows_of(self.num_windows), minlength=self.num_windows)
        if not counts.all():
            window = int(np.argmin(counts > 0)) + 1
            raise ConfigError(
                f"--trace-windows {self.num_windows}: no request of {self.path} arrives in window "
                f"{window}, from {(window - 1) * self.run_s:g} to {window * self.run_s:g} s; "
                f"{self._fewer()}"
            )

    def _fewer(self) -> str:
        """Return advice: the largest number of windows, below those given, of which each has requests."""
        first = min(self.num_windows or 1, self.num_requests + 1) - 1
        each = (count for count in range(first, 1, -1) if self._has_requests_in(count))
        most = next(each, None)
        if most is None:
            return "leave it out, or give a longer trace"
        return f"give {most} at most, or a longer trace"

    def _has_requests_in(self, count: int) -> bool:
        return bool(np.bincount(self._windows_of(count), minlength=count).all())

    # --- what the trace holds

    @property
    def trace(self) -> Trace:
        """Return the trace as read under the options' seed."""
        return self._read(self.options.seed)

    def _read(self, seed: int) -> Trace:
        if seed not in self._kept:
            options = dataclasses.replace(self.options, seed=seed)
            with progress.phase(f"reading {self.path}"):
                self._kept[seed] = read_trace(self.path, options)
        return self._kept[seed]

    @property
    def num_requests(self) -> int:
        """Return the number of requests of the trace, all windows together."""
        return len(self.trace.rows)

    @property
    def span_s(self) -> float:
        """Return the seconds from the first to the last arrival."""
        arrival_us = self.trace.rows.arrival_us
        return self.pace * float(arrival_us[-1] - arrival_us[0]) / 1e6

    @property
    def run_s(self) -> float:
        """Return the seconds over which the arrivals of one run extend."""
        return self.span_s / (self.num_windows or 1)

    @property
    def aggregate_rate(self) -> float | None:
        """Return the mean number of requests per second; None if they all arrive at once."""
        return self.num_requests / self.span_s if self.span_s else None

    @property
    def horizon(self) -> int:
        """Return 0: runs continue until the last completion."""
        return 0

    @property
    def measure(self) -> MeasureSpec:
        """Return the measure by which every arrival counts."""
        return MeasureSpec()

    @cached_property
    def slo_classes(self) -> tuple[str, ...]:
        """Return the SLO classes of the requests, `default` for none, in order of their first use."""
        codes = dict.fromkeys(self.trace.rows.slo_class.tolist())
        return tuple(SLO_CLASSES[code] or "default" for code in codes)

    @property
    def is_sharing(self) -> bool:
        """Return whether some prompts have a known common beginning."""
        return self.trace.rows.tells_what_is_shared

    @property
    def waits(self) -> bool:
        """Return whether some requests wait for the answers to others."""
        return DELAY in self.trace.rows.others

    # --- runs

    def seeds(
        self,
        seeds: Sequence[int] | None,
        configs: Iterable[ClusterConfig],
        usual: Sequence[int] = USUAL_SEEDS,
    ) -> tuple[int, ...]:
        """Return the seeds of the runs, or the windows' numbers; `usual` if seeds matter and none are given."""
        if self.num_windows is not None:
            if seeds is not None:
                raise ConfigError(
                    "--seeds and --trace-windows are both given; give one of them: each window is a run"
                )
            return tuple(range(1, self.num_windows + 1))
        if self.trace.is_drawn or any(map(draws, configs)):
            return tuple(seeds or usual)
        return tuple(seeds or usual)[:1]

    def depends_on_seed(self, config: ClusterConfig) -> bool:
        """Return whether runs with different numbers differ under a configuration."""
        return self.num_windows is not None or self.trace.is_drawn or draws(config)

    def table(self, seed: int, block_size: int) -> RequestTable:
        """Return the requests of one run; time 0 is the start of its window."""
        return to_table(self.rows(seed), block_size)[0]

    def placed(self, table: RequestTable, seed: int, config: ClusterConfig) -> RequestTable:
        """Return one run's table with columns that depend on the cluster: deadlines, unserved models, adapters."""
        rows = self.rows(seed)
        if rows.timeout_us.any() and (config.is_august or config.corrected):
            table = with_timeouts(table, rows.timeout_us)
        table = with_models(table, models_of(rows), config.serves)
        return with_adapters(table, config, rows.others.get(ADAPTER), models_of(rows))

    def rows(self, seed: int) -> TraceRows:
        """Return the trace rows of one run, before their contents are cut into blocks."""
        if self.num_windows is None:
            trace = self._read(seed) if self.trace.is_drawn else self.trace
            return self._paced(trace.rows)
        rows = self.trace.rows
        chosen = rows.take(np.flatnonzero(self._windows_of(self.num_windows) == seed - 1))
        width_us = (int(rows.arrival_us[-1]) - int(rows.arrival_us[0])) / self.num_windows
        start_us = int(rows.arrival_us[0]) + int((seed - 1) * width_us)
        arrival_us = np.maximum(chosen.arrival_us - start_us, 0)
        return self._paced(dataclasses.replace(chosen, arrival_us=arrival_us))

    def _windows_of(self, count: int) -> np.ndarray:
        """Return the window of each request, from 0, of `count` equal spans of arrivals."""
        arrival_us = self.trace.rows.arrival_us
        width_us = max(int(arrival_us[-1] - arrival_us[0]), 1) / count
        return np.minimum(((arrival_us - arrival_us[0]) / width_us).astype(np.int64), count - 1)

    def _paced(self, rows: TraceRows) -> TraceRows:
        return scale_time(rows, self.pace)

    def at_rate(self, rate: float) -> TraceSource:
        """Return the same requests scaled to `rate` arrivals per second on average."""
        assert self.aggregate_rate is not None
        return dataclasses.replace(self, pace=self.pace * self.aggregate_rate / rate)

    def check_classes(self, metrics: Iterable[str]) -> None:
        """Refuse metrics that name a class without requests."""
        for name in metrics:
            _, slo_class = split_name(name)
            if slo_class is not None and slo_class not in self.slo_classes:
                raise ConfigError(
                    f"{name} is asked for, but {self.path} has no requests of class {slo_class}; "
                    f"it has {', '.join(self.slo_classes)}; --slo-mix gives classes to requests without one"
                )

    # --- words

    def content(self) -> dict[str, Any]:
        """Return everything on which the requests depend, the file's content included."""
        wanted = dataclasses.asdict(self.options) | {"format": self.trace.format}
        return {
            "trace": self._digest,
            "options": wanted,
            "windows": self.num_windows,
            "pace": self.pace,
        }

    def about(self) -> dict[str, Any]:
        """Return the description of the trace that results contain."""
        usual = TraceOptions()
        chosen = {
            name: value
            for name, value in dataclasses.asdict(self.options).items()
            if value != getattr(usual, name) and name != "format"
        }
        return {
            "path": str(self.path.resolve()),
            "sha256": self._digest,
            "format": self.trace.format,
            "options": chosen,
            "num_requests": self.num_requests,
            "span_s": self.span_s,
            "windows": self.num_windows,
            "is_drawn": self.trace.is_drawn,
        }

    @cached_property
    def _digest(self) -> str:
        files = sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]
        digest = hashlib.sha256()
        for file in files:
            if file.is_file():
                digest.update(file.name.encode() if len(files) > 1 else b"")
                digest.update(file.read_bytes())
        return digest.hexdigest()[:16]
