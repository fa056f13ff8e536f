"""Judge of herds: do instances fill in turns, fresh or with stale snapshots?"""

from __future__ import annotations

from collections.abc import Mapping

from blis_jax.cluster.config import ClusterConfig
from sweeps.review.candidates import Candidate
from sweeps.review.opinion import CONCERN, PASS, REJECT, Exhibit, Judge, Opinion

STALE_US = 100_000
IN_A_ROW = 0.5  # of the requests go where the one before went
MUCH = 1.5  # times what fresh snapshots or the load alone give
FRESH, STALE, BY_LOAD = "fresh", "stale", "by load"
METRICS = ("same_instance_rate", "load_swing", "busiest_share", "ttft_p99_ms")


def configs(candidate: Candidate) -> dict[str, ClusterConfig]:
    """Fresh and 100 ms old snapshots, and routing by queue depth alone."""
    config = candidate.config
    by_load = {"routing_policy": "weighted", "routing_scorers": "queue-depth:1"}
    return {
        FRESH: config.replace(snapshot_refresh_interval=0),
        STALE: config.replace(snapshot_refresh_interval=STALE_US),
        BY_LOAD: config.replace(snapshot_refresh_interval=0, **by_load),
    }


def judge(exhibit: Exhibit) -> Opinion:
    """Rejects herds that cost latency; a collapse onto one instance is the worst of them."""
    candidate = exhibit.candidate
    variants = {"own": candidate.config, **configs(candidate)}
    figures = {
        name: {metric: exhibit.mean(config, metric) for metric in METRICS}
        for name, config in variants.items()
    }
    own, stale, fresh, by_load = (figures[name] for name in ("own", STALE, FRESH, BY_LOAD))
    slow = own["ttft_p99_ms"] / by_load["ttft_p99_ms"]
    in_a_row = own["same_instance_rate"]
    swing, later = _against(stale, fresh)
    own_swing, own_later = _against(own, fresh)
    size = candidate.config.num_instances
    verdict, reason = PASS, "loads stay balanced, even with stale snapshots"
    failed = [run.outcome for run in exhibit.own if not run.is_whole]
    if failed:
        verdict, reason = CONCERN, f"a run ended with {failed[0]}, so there is nothing to compare"
    elif size > 1 and own["busiest_share"] > size / 2:
        verdict = REJECT
        reason = f"one of {size} instances gets {own['busiest_share'] / size:.0%} of all requests"
    elif size > 2 and in_a_row > IN_A_ROW:
        verdict = REJECT if slow >= MUCH else CONCERN
        reason = (
            f"{in_a_row:.0%} of the requests go where the one before went, so instances fill in "
            f"turns; P99 is {slow:.2f} times that of routing by load"
        )
    elif own_swing >= MUCH and own_later >= MUCH:
        verdict = REJECT
        age = candidate.config.snapshot_refresh_interval / 1000
        reason = (
            f"its snapshots of {age:g} ms make loads swing {own_swing:.2f} times as much as fresh ones, "
            f"and P99 {own_later:.2f} times as high"
        )
    elif swing >= MUCH and later >= 1.2:
        verdict = CONCERN
        reason = (
            f"with snapshots {STALE_US // 1000} ms old loads swing {swing:.2f} times as much and P99 is "
            f"{later:.2f} times as high"
        )
    return Opinion(
        "oscillation",
        candidate.name,
        verdict,
        (reason,),
        figures,
        "runs with the candidate's own, fresh and 100 ms old snapshots, and by queue depth alone",
    )


def _against(one: Mapping[str, float], fresh: Mapping[str, float]) -> tuple[float, float]:
    """Swing of the loads and P99, as multiples of those with fresh snapshots."""
    swing = one["load_swing"] / fresh["load_swing"] if fresh["load_swing"] else 1.0
    return swing, one["ttft_p99_ms"] / fresh["ttft_p99_ms"]


OSCILLATION = Judge("oscillation", "instances that fill in turns", configs, judge)
