"""Judges of routing: signals that are equal for all instances, and herds; from every decision of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.router import without_scorer
from blis_jax.engine.mechanism import mechanism
from blis_jax.files.atomic_write import finite
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import Policy
from blis_jax.policies.reading import MATCH, signals_of
from blis_jax.policies.seeds import policy_seed
from blis_jax.runs.calls import Call, Results, execute
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options
from blis_jax.runs.runs import GivenRun, Row
from sweeps.claims.words import CONCERN, PASS, REJECT
from sweeps.review.candidates import Candidate, Exhibit, Judge, Looked

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from blis_jax.workload.table import RequestTable


@dataclass(frozen=True)
class RunDecisions:
    """The scorers' values, before clamping, at each routing decision of a run, with loads and prefix matches."""

    names: tuple[str, ...]
    weights: Float[np.ndarray, "scorer"]  # sum to 1
    scores: Float[np.ndarray, "scorer decision instance"]
    loads: Int[np.ndarray, "decision instance"]
    matched: Int[np.ndarray, "decision instance"]  # prompt blocks in the router's index

    def total(self, without: str | None = None) -> Float[np.ndarray, "decision instance"]:
        """Return weighted sums of the scores, optionally without one scorer."""
        clamped = np.clip(self.scores, 0.0, 1.0)
        kept = np.array([name != without for name in self.names])
        return np.einsum("s,sdi->di", self.weights * kept, clamped)

    def is_flat(self, name: str) -> Bool[np.ndarray, "decision"]:
        """Return, for each decision, whether a scorer gives all instances the same value."""
        values = self.scores[self.names.index(name)]
        return values.max(axis=1) == values.min(axis=1)

    def spread(self, name: str) -> float:
        """Return the mean difference of a scorer's values between its best and its worst instance."""
        values = np.clip(self.scores[self.names.index(name)], 0.0, 1.0)
        return float((values.max(axis=1) - values.min(axis=1)).mean())

    def decides(self, name: str) -> float:
        """Return the share of decisions that change if the scorer is removed, all else being equal."""
        with_all, without = self.total().argmax(axis=1), self.total(name).argmax(axis=1)
        return float((with_all != without).mean())

    def agreement(self, name: str, other: Float[np.ndarray, "decision instance"]) -> float:
        """Return the share of the pairs of instances ordered by `other` that a scorer orders alike; else NaN."""
        values = self.scores[self.names.index(name)]
        sign = np.sign(values[:, :, None] - values[:, None, :])
        theirs = np.sign(other[:, :, None] - other[:, None, :])
        is_ordered = (sign != 0) | (theirs != 0)
        return float((sign == theirs)[is_ordered].mean()) if is_ordered.any() else float("nan")

    def narrow(self, relative: float) -> float:
        """Return the share of decisions in which the two best scores are unequal but differ by rounding only."""
        ordered = np.sort(self.total(), axis=1)
        if ordered.shape[1] < 2:
            return 0.0
        margin = ordered[:, -1] - ordered[:, -2]
        return float(((margin > 0) & (margin <= relative * np.abs(ordered[:, -1]))).mean())


def decisions_of(config: ClusterConfig, table: RequestTable, seed: int) -> RunDecisions | None:
    """Record the routing decisions of a run on the requests of a seed; None unless routing is weighted."""
    if not config.scorers():
        return None
    log: dict[int, dict[int, Any]] = {}
    functions = mechanism(config)
    spies = [_spy(scorer, place, log) for place, scorer in enumerate(functions.scorers)]
    spies[0] = _spy_on_view(spies[0], log)
    # lanes would evaluate scorers where nothing is routed, and note it
    options = Options(form="rows")
    run = GivenRun(Row(config, table, policy_seed(seed)), options)
    watched: dict[str, Any] = {"scorers": tuple(spies)}
    run.functions = dataclasses.replace(functions, **watched)

    def noted(call: Call) -> Results:
        log.clear()  # of an earlier call that was not the last
        results = execute(call)
        jax.effects_barrier()
        return results

    Runner(options, num_rows=1).alone(run, noted)
    return _collected(config, log)


def _spy(scorer: Policy, place: int, log: dict[int, dict[int, Any]]) -> Policy:
    """Return the scorer with its values logged, as pairs of 32 bits because a callback may not receive 64."""

    def note(rank: Any, halves: Any) -> None:
        values = np.ascontiguousarray(halves, np.uint32).view(np.float64)[:, 0]
        log.setdefault(int(rank), {})[place] = values

    def spying(params: Any, state: Any, context: GatewayContext) -> Any:
        scores, state = scorer.decide(params, state, context)
        halves = jax.lax.bitcast_convert_type(scores.astype(jnp.float64), jnp.uint32)
        jax.debug.callback(note, context.request.tie_rank, halves)
        return scores, state

    return dataclasses.replace(scorer, decide=spying)


def _spy_on_view(scorer: Policy, log: dict[int, dict[int, Any]]) -> Policy:
    def note(rank: Any, load: Any, matched: Any) -> None:
        log.setdefault(int(rank), {})[-1] = (np.asarray(load), np.asarray(matched))

    def spying(params: Any, state: Any, context: GatewayContext) -> Any:
        seen = context.snapshots.effective_load, context.snapshots.prefix_match_blocks
        jax.debug.callback(note, context.request.tie_rank, *seen)
        return scorer.decide(params, state, context)

    signals = signals_of(scorer.function()) if scorer.signals is None else scorer.signals
    signals |= {MATCH}  # which the judge reads, whatever the scorers do
    return dataclasses.replace(scorer, decide=spying, signals=signals)


def _collected(config: ClusterConfig, log: dict[int, dict[int, Any]]) -> RunDecisions:
    pairs = config.scorers()
    weights = np.array([weight for _, weight in pairs])
    size = config.num_instances
    ranks = sorted(log)
    scores = [[log[rank][place][:size] for rank in ranks] for place in range(len(pairs))]
    return RunDecisions(
        tuple(name for name, _ in pairs),
        weights / weights.sum(),
        np.array(scores).reshape(len(pairs), len(ranks), size),
        np.array([log[rank][-1][0][:size] for rank in ranks]).reshape(len(ranks), size),
        np.array([log[rank][-1][1][:size] for rank in ranks]).reshape(len(ranks), size),
    )


MOSTLY = 0.99  # of the decisions
SELDOM = 0.02
REDUNDANT = 0.98  # pairs of instances ordered alike by two scorers
WITHOUT, CONSTANT = "without ", "constant priority"


def without_signals(candidate: Candidate) -> dict[str, ClusterConfig]:
    """Return the candidate without each of its scorers, one at a time, and with a constant priority."""
    config, configs = candidate.config, {}
    for name, _ in config.scorers():
        others = without_scorer(config.scorers(), name)
        if others:
            configs[WITHOUT + name] = config.replace(routing_scorers=others)
    if config.priority_policy != "constant":
        configs[CONSTANT] = config.replace(priority_policy="constant")
    return configs


def look_at_signals(exhibit: Exhibit) -> Looked:
    """Reject a scorer or a priority that is equal for all instances or requests, or that changes nothing."""
    candidate = exhibit.candidate
    reviewed, evidence = [], {}
    for name, _ in candidate.config.scorers():
        verdict, reason, evidence[name] = _on_scorer(exhibit, name)
        reviewed.append((verdict, reason))
    if candidate.config.priority_policy != "constant":
        share = exhibit.differing(without_signals(candidate)[CONSTANT])
        evidence["priority"] = {"requests that differ from constant priority": share}
        if share == 0:
            policy = candidate.config.priority_policy
            words = f"priority policy {policy} changes no request: a constant gives the same"
            reviewed.append((REJECT, words))
    return reviewed, evidence


def _on_scorer(exhibit: Exhibit, name: str) -> tuple[str, str, Mapping[str, Any]]:
    """Return verdict, reason (if any) and figures of one scorer."""
    decisions, config = exhibit.decisions, exhibit.candidate.config
    assert decisions is not None
    ablated = without_signals(exhibit.candidate).get(WITHOUT + name)
    differing = None if ablated is None else exhibit.differing(ablated)
    flat, decides = float(decisions.is_flat(name).mean()), decisions.decides(name)
    matched = decisions.matched.astype(float)
    figures = {
        "decisions in which all instances score alike": flat,
        "mean difference between best and worst": decisions.spread(name),
        "decisions that fall otherwise without it": decides,
        "pairs ordered as by load": decisions.agreement(name, -decisions.loads.astype(float)),
        "pairs ordered as by cached prefix": finite(decisions.agreement(name, matched)),
        "requests that differ in runs without it": differing,
    }
    if flat >= MOSTLY:
        share = f"{flat:.1%} of the decisions"
        return REJECT, f"scorer {name} gives all instances one value in {share}", figures
    if differing == 0:
        return REJECT, f"scorer {name} changes no request: the same results without it", figures
    twin = _twin(exhibit, name)
    if twin:
        says = f"scorers {twin} and {name} order the instances alike: one signal with two weights"
        return CONCERN, says, figures
    if name == "kv-utilization" and decisions.spread(name) < 0.02:
        says = (
            "scorer kv-utilization is free capacity, not what is cached, and here instances differ "
            f"by {decisions.spread(name):.2%} in it"
        )
        return CONCERN, says, figures
    if decides < SELDOM and len(config.scorers()) > 1:
        says = f"scorer {name} decides {decides:.1%} of the requests"
        return CONCERN, says, figures
    return PASS, "", figures


def _twin(exhibit: Exhibit, name: str) -> str:
    """Return an earlier scorer that ranks instances like this one; empty if there is none."""
    decisions = exhibit.decisions
    assert decisions is not None
    for place, other in enumerate(decisions.names[: decisions.names.index(name)]):
        if decisions.agreement(name, decisions.scores[place]) >= REDUNDANT:
            return other
    return ""


SIGNAL = Judge(
    "signal",
    "every signal differs between instances or requests, and decides",
    "each scorer's values at every routing decision of the first seed; runs without each scorer "
    "and with a constant priority, compared request by request",
    look_at_signals,
    without_signals,
)


STALE_US = 100_000
IN_A_ROW = 0.5  # of the requests go where the one before went
MUCH = 1.5  # times what fresh snapshots or the load alone give
FRESH, STALE, BY_LOAD = "fresh", "stale", "by load"
METRICS = ("same_instance_rate", "load_swing", "busiest_share", "ttft_p99_ms")


def snapshot_ages(candidate: Candidate) -> dict[str, ClusterConfig]:
    """Return the candidate with fresh and with 100 ms old snapshots, and with routing by queue depth alone."""
    config = candidate.config
    by_load = {"routing_policy": "weighted", "routing_scorers": "queue-depth:1"}
    return {
        FRESH: config.replace(snapshot_refresh_interval=0),
        STALE: config.replace(snapshot_refresh_interval=STALE_US),
        BY_LOAD: config.replace(snapshot_refresh_interval=0, **by_load),
    }


def look_at_herds(exhibit: Exhibit) -> Looked:
    """Reject herds that cost latency; the worst herd is a collapse onto one instance."""
    candidate = exhibit.candidate
    variants = {"own": candidate.config, **snapshot_ages(candidate)}
    figures = {
        name: {metric: exhibit.mean(config, metric) for metric in METRICS}
        for name, config in variants.items()
    }
    of_index, stale, fresh, by_load = (figures[name] for name in ("own", STALE, FRESH, BY_LOAD))
    slow = of_index["ttft_p99_ms"] / by_load["ttft_p99_ms"]
    in_a_row = of_index["same_instance_rate"]
    swing, later = _against(stale, fresh)
    own_swing, own_later = _against(of_index, fresh)
    size = candidate.config.num_instances
    verdict, reason = PASS, ""
    failed = [run.outcome.name for run in exhibit.own if not run.is_whole]
    if failed:
        verdict, reason = CONCERN, f"a run ended with {failed[0]}, so there is nothing to compare"
    elif size > 1 and of_index["busiest_share"] > size / 2:
        verdict = REJECT
        reason = (
            f"one of {size} instances gets {of_index['busiest_share'] / size:.0%} of all requests"
        )
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
    return [(verdict, reason)], figures


def _against(measured: Mapping[str, float], fresh: Mapping[str, float]) -> tuple[float, float]:
    """Return load swing and TTFT P99, as ratios to those with fresh snapshots."""
    swing = measured["load_swing"] / fresh["load_swing"] if fresh["load_swing"] else 1.0
    return swing, measured["ttft_p99_ms"] / fresh["ttft_p99_ms"]


OSCILLATION = Judge(
    "oscillation",
    "loads stay balanced, even with stale snapshots",
    "runs with the candidate's own, fresh and 100 ms old snapshots, and by queue depth alone",
    look_at_herds,
    snapshot_ages,
)
