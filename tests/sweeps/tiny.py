"""A small strategy and made-up runs, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.metrics.run_summary import RunSummary
from sweeps.runs.experiment import Experiment
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Space, space_of

TINY = """
name: tiny
description: two small instances
mechanism: {num_instances: 2, routing_policy: weighted, scheduler: priority-fcfs,
            priority_policy: slo-tiered}
parameters:
  slo_base_critical: [5, 20]
  max_num_scheduled_tokens: [600, 2048]
  routing_scorers.queue-depth: {categories: [1, 2], type: categorical}
objectives: [{metric: "ttft_p99_ms[critical]"}]
constraints:
  - {metric: tokens_per_sec, direction: max, threshold: 1.0e+9, weight: 1.0e-9}
success_criteria:
  - {metric: ttft_p99_ms, direction: min, threshold: 1000}
  - {metric: ttft_p99_ms, direction: min, change_percent: 10}
workload:
  version: '2'
  category: language
  aggregate_rate: 200.0
  num_requests: 40
  clients:
  - id: a
    slo_class: critical
    rate_fraction: 0.5
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 200}}
    output_distribution: {type: exponential, params: {mean: 20}}
  - id: b
    slo_class: sheddable
    rate_fraction: 0.5
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 300}}
    output_distribution: {type: exponential, params: {mean: 20}}
seeds: [42, 43]
search: {engine: random, calls: 5, initial: 3, batch: 2}
"""


def tiny_space(text: str = TINY) -> Space:
    return space_of(parse_strategy(text, "tiny.yaml"))


def budget(engine: str, **changes: int) -> Search:
    return Search.model_validate(
        {"engine": engine, "calls": 12, "initial": 4, "batch": 3} | changes
    )


def run_of(**metrics: float) -> RunSummary:
    """A run that came to its end."""
    return RunSummary(Outcome.COMPLETED, metrics)


@contextmanager
def interrupted_runs(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> Iterator[None]:
    """Interrupt a method of `Experiment` at its n-th call, as Ctrl-C does."""
    original, calls = getattr(Experiment, method), 0

    def killed(self: Experiment, *given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return original(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, method, killed)
        yield


@contextmanager
def interrupted_calls(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Interrupt an experiment after so many compiled calls, as Ctrl-C does."""
    original = Experiment.each

    def some(self: Experiment, *given: Any) -> Iterator[Any]:
        yield from itertools.islice(original(self, *given), count)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "each", some)
        yield


def change_runs(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[ClusterConfig, int, RunSummary], RunSummary]
) -> None:
    """Let experiments give other runs: `change` gets the configuration, the place of the seed and the run."""
    original = Experiment.each

    def each(
        self: Experiment, configs: Sequence[ClusterConfig], *given: Any
    ) -> Iterator[list[tuple[tuple[int, int], RunSummary]]]:
        for finished in original(self, configs, *given):
            yield [((at, p), change(configs[at], p, run)) for (at, p), run in finished]

    monkeypatch.setattr(Experiment, "each", each)
