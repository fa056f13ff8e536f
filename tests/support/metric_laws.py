"""What holds of the metrics of any run, whatever its mechanism."""

from __future__ import annotations

import numpy as np
import pytest

import blis_jax.metrics.further  # noqa: F401  (registers the metrics of searches)
from blis_jax.core.types import CLASS_NAMES
from blis_jax.metrics.figures import latest_us
from blis_jax.metrics.metric import METRICS
from blis_jax.metrics.scalars import evaluate, lookup, metric_names
from blis_jax.metrics.summaries import SloTargets, Target
from blis_jax.records.record import COUNTED, RunRecord, Status
from blis_jax.records.step_records import itl_values, overlaps

TARGETS = SloTargets(
    {"critical": Target(ttft_ms=60.0), "sheddable": Target(e2e_ms=4000.0, tpot_ms=20.0)},
    otherwise=Target(ttft_ms=200.0),
)
NAMES = tuple(
    f"{name}[{slo_class}]" if slo_class else name
    for name in metric_names()
    for slo_class in ((None, *CLASS_NAMES) if lookup(name)[0].has_classes else (None,))
)
LATENCIES = ("ttft", "e2e", "tpot", "scheduling_delay", "itl")
MOST_TOKENS = (1, 33)  # of a request in a step, with drafts
UNFINISHED = (Status.WAITING, Status.RUNNING, Status.IN_FLIGHT, Status.IN_GATEWAY)
SHARES = (
    *("attainment", "slo_miss_rate", "reject_rate", "jain_fairness", "class_fairness"),
    *("cache_hit_rate", "kv_peak_utilization", "kv_mean_utilization", "phantom_hit_rate"),
)


def assert_metrics_agree(record: RunRecord, host: dict[str, float] | None = None) -> None:
    """Hold every law on a run; `host` has all of NAMES against TARGETS, if they are known already."""
    host = evaluate(record, NAMES, TARGETS) if host is None else host
    latencies_sum_to_the_time_after_the_first_token(record)
    requests_are_conserved(record, host)
    latencies_are_in_order(record, host)
    values_are_possible(host)
    shares_and_rates_are_possible(record, host)


def values_are_possible(host: dict[str, float]) -> None:
    """No metric is below 0 or without an end, and what counts is whole; overlapping steps count twice as busy."""
    for name, value in host.items():
        if name != "idle_share" and not np.isnan(value):
            assert 0 <= value < np.inf, name
        if name.startswith("num_") and not np.isnan(value):  # of adapters: there are none
            assert value == round(value), name
    assert {name.partition("[")[0] for name in host} == set(METRICS)


def latencies_sum_to_the_time_after_the_first_token(record: RunRecord) -> None:
    """Where BLIS says otherwise (split requests, an overhead after the last token) its own sum stands for it."""
    requests = record.requests
    is_done = requests.status == Status.COMPLETED
    own = requests.after_first_us if requests.itl_us is None else requests.itl_us
    values, weights = itl_values(record)
    assert (values * weights).sum() == own[is_done].sum() or overlaps(record).overlapping_steps


def requests_are_conserved(record: RunRecord, host: dict[str, float]) -> None:
    """In the run, and from class to class."""
    unfinished = np.isin(record.requests.status, UNFINISHED)
    counted = sum(host[name] for name in COUNTED)
    assert counted + unfinished.sum() == len(record.requests.status)
    for name in (*COUNTED, "requests_per_s", "output_tokens_per_s", "goodput_rps"):
        by_class = sum(host[f"{name}[{slo_class}]"] for slo_class in CLASS_NAMES)
        assert by_class == pytest.approx(host[name], rel=1e-12), name


def latencies_are_in_order(record: RunRecord, host: dict[str, float]) -> None:
    """Percentiles ascend around the mean's neighbours, and what is part of a time is no longer than it."""
    for latency in LATENCIES:
        levels = [host[f"{latency}_p{percent}_ms"] for percent in (50, 90, 95, 99)]
        assert np.isnan(levels).all() or (np.diff(levels) >= 0).all(), latency
    requests = record.requests
    has_both = (requests.status == Status.COMPLETED) & (requests.ttft_us >= 0)
    assert (requests.ttft_us <= requests.e2e_us)[has_both].all()
    if record.splits is None:  # whose scheduling and first token are of two parts
        has_token = requests.ttft_us >= 0
        parts = requests.ttft_parts_us[has_token]
        np.testing.assert_array_equal(parts.sum(axis=1), requests.ttft_us[has_token])


def shares_and_rates_are_possible(record: RunRecord, host: dict[str, float]) -> None:
    """Nothing is used more than whole, and no more tokens are made than the steps have room for."""
    for name in SHARES:
        assert np.isnan(host[name]) or 0 <= host[name] <= 1, name
    assert host["slo_miss_rate"] == pytest.approx(1 - host["attainment"], nan_ok=True)
    steps, ended = record.steps, latest_us(record)
    if not len(steps.duration_us):
        assert not host["tokens_per_sec"]
        return
    busy = np.bincount(steps.instance, steps.num_steps * steps.duration_us)
    # what has begun goes on beyond the last event
    assert (busy <= ended + steps.duration_us.max()).all() or overlaps(record).overlapping_steps
    tokens = host["tokens_per_sec"] * host["duration_s"]
    # in August a request's first token counts, too
    first = host["num_completed"] if record.is_august else 0
    drafted = 0 if record.drafts is None else record.drafts.num_accepted_tokens.sum()
    assert tokens <= (steps.running * steps.num_steps).sum() + first + drafted
    most = steps.running.max() * MOST_TOKENS[record.drafts is not None]
    fastest = record.num_instances * most / steps.duration_us.min() * 1e6
    assert host["tokens_per_sec"] <= fastest + first / host["duration_s"]
    assert host["requests_per_s"] <= host["output_tokens_per_s"]
