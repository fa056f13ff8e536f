"""Checks of the policy functions themselves, on synthetic snapshots and queues: no runs, no statistics.

Each check returns a figure, mostly the number of cases that violate a statement, and the numbers behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import EngineShape, RequestView, Snapshots
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.engine.phases.policy_calls import combined_scores
from blis_jax.policies.contexts import GatewayContext, PickerContext, QueueContext
from blis_jax.policies.contract import NoParams, NoState
from blis_jax.policies.routing.by_score import shares_of, weighted
from blis_jax.policies.routing.pickers import first_best
from blis_jax.workload.distribution import prefix_lengths
from blis_jax.workload.reference import draw
from sweeps.principles.catalogue import WorkloadChoice, workload_named
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.search.engines import make
from sweeps.search.loop import best_of, runs_at, search
from sweeps.search.objectives import Valuation
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from blis_jax.workload.spec import WorkloadSpec

Found = tuple[float, Mapping[str, float]]
NUM_PROMPT_BLOCKS = 600  # divisible by most denominators of match ratios
LEAST_LOAD, MOST_LOAD = 2, 60
PROBE_SEED = 11
# for the first states of policies; no run has these sizes
SHAPE = EngineShape(num_instances=16, num_slots=1, num_requests=1, num_nodes=0, path_depth=1)


def scores_of(
    scorers: str,
    loads: Int[np.ndarray, "case instance"],
    utilization: Float[np.ndarray, "case instance"],
    matched: Int[np.ndarray, "case instance"],
    blocks: int,
) -> Float[np.ndarray, "case instance"]:
    """Return the combined scores of a router with these scorers, for one request in each case."""
    size = loads.shape[1]
    config = ClusterConfig(num_instances=size, routing_policy="weighted", routing_scorers=scorers)
    functions, numbers = mechanism(config), params(config)

    def scores_of_case(loads: Any, utilization: Any, matched: Any, infinity: Any) -> Any:
        context = context_of(loads, utilization, matched, blocks)
        states, keys = _states(functions.scorers, numbers.policy.scorers), [None] * len(scorers)
        with runtime_infinity(infinity):
            arguments = functions.scorers, numbers.policy, states, context, keys
            return combined_scores(*arguments, shares_of(numbers.policy.scorer_weights))[0]

    with jax.enable_x64(True):
        cases = (loads.astype(np.int32), utilization.astype(np.float64), matched.astype(np.int32))
        scores = jax.jit(jax.vmap(scores_of_case, in_axes=(0, 0, 0, None)))(
            *cases, np.float64(np.inf)
        )
        return np.asarray(scores)


def _states(policies: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    return [policy.start(params, SHAPE) for policy, params in zip(policies, numbers, strict=True)]


def context_of(
    loads: Int[np.ndarray, "instance"],
    utilization: Float[np.ndarray, "instance"],
    matched: Int[np.ndarray, "instance"],
    blocks: int,
    slo_class: int = 2,
    total_blocks: int = 132139,
    scores: Any = None,
) -> GatewayContext:
    """Return one request and the router's view of the instances, as policies receive them."""
    zero = jnp.int32(0)
    request = RequestView(
        jnp.int32(slo_class), jnp.int32(16 * blocks), jnp.int64(0), zero, zero, zero
    )
    load, nothing = jnp.asarray(loads, jnp.int32), jnp.zeros(len(loads), jnp.float64)
    used = jnp.asarray(utilization, jnp.float64)
    seen = Snapshots(
        effective_load=load,
        queue_depth=load,
        batch_size=jnp.zeros_like(load),
        num_pending=jnp.zeros_like(load),
        kv_utilization=used,
        free_kv_blocks=(1.0 - used) * total_blocks,
        cache_hit_rate=nothing,
        prefix_match_blocks=jnp.asarray(matched, jnp.int32),
        num_rejected=zero,
        is_active=jnp.ones(len(loads), bool),
        role=jnp.zeros_like(load),
    )
    picked = None
    if scores is not None:
        among = PickerContext(scores, seen.is_active, request, None)
        picked, _ = first_best.decide(NoParams(), NoState(), among)
    return GatewayContext(
        request=request,
        num_prompt_blocks=jnp.int32(blocks),
        prompt_key=zero,
        snapshots=seen,
        now_us=jnp.int64(0),
        key=None,
        scores=scores,
        picked=picked,
        block_size=jnp.int32(16),
    )


def affinity_thresholds(weights: Sequence[Sequence[int]], ratios: Sequence[float]) -> Found:
    """Count the violations, over pairs of weights, of when a warm, loaded instance must win over a cold, idle one.

    With weights a (affinity) and b (load) and match ratio r the warm instance must win iff a r >= b (it is the first
    instance, and ties go to the first): for every ratio iff a / b >= 1 / r_min, for none iff a / b < 1 / r_max.
    """
    exact = [Fraction(ratio).limit_denominator(NUM_PROMPT_BLOCKS) for ratio in ratios]
    violations, cascades, inert = 0, 0, 0
    for a, b in weights:
        matched = np.array([[int(ratio * NUM_PROMPT_BLOCKS), 0] for ratio in exact])
        loads = np.tile([MOST_LOAD, LEAST_LOAD], (len(exact), 1))
        scorers = f"prefix-affinity:{a},queue-depth:{b}"
        scores = scores_of(scorers, loads, np.zeros(loads.shape), matched, NUM_PROMPT_BLOCKS)
        sticks = scores.argmax(axis=1) == 0
        ratio_of_weights = Fraction(a, b)
        cascades += int(sticks.all())
        inert += int(not sticks.any())
        violations += bool(sticks.all()) != (ratio_of_weights >= 1 / min(exact))
        violations += (not sticks.any()) != (ratio_of_weights < 1 / max(exact))
    parts = {"weights": len(weights), "cascading": cascades, "without influence": inert}
    return violations, {name: float(value) for name, value in parts.items()}


def match_ratios(workload: str, seed: int = 42) -> Found:
    """Return the largest prefix ÷ prompt over a workload's requests; and the smallest, and the inverses of both."""
    ratios = prefix_shares(workload_named(WorkloadChoice(name=workload)), seed)
    low, high = float(ratios.min()), float(ratios.max())
    return high, {"r_min": low, "r_max": high, "1/r_max": 1 / high, "1/r_min": 1 / low}


def prefix_shares(spec: WorkloadSpec, seed: int) -> Float[np.ndarray, "request"]:
    """Return prefix ÷ prompt length of every request with a prefix group; both lengths in tokens."""
    table, _ = draw(spec, seed, 16)
    lengths = prefix_lengths(spec.clients)
    by_client = [0 if c.multi_turn else lengths.get(c.prefix_group, 0) for c in spec.clients]
    prefix = np.array(by_client)[np.asarray(table.client)]
    shares: np.ndarray = prefix[prefix > 0] / np.asarray(table.input_len)[prefix > 0]
    return shares


def affinity_algebra(scorers: str, without: str, num: int = 10_000, instances: int = 8) -> Found:
    """Count the requests without a prefix match that go to another instance once the affinity scorer is removed."""
    generator = np.random.default_rng(PROBE_SEED)
    loads = generator.integers(0, 80, (num, instances))
    used = generator.integers(0, 1500, (num, instances)) / 132139
    nothing = np.zeros(loads.shape, np.int64)
    with_affinity, without_affinity = (
        scores_of(text, loads, used, nothing, 48) for text in (scorers, without)
    )
    changed = with_affinity.argmax(axis=1) != without_affinity.argmax(axis=1)
    return float(changed.sum()), {"requests": float(num)}


def argmax_regret(scorers: str, num: int = 10_000, instances: int = 8) -> Found:
    """Return the largest shortfall of the chosen score from the best score, over synthetic requests: 0 by design."""
    generator = np.random.default_rng(PROBE_SEED)
    loads = generator.integers(0, 80, (num, instances))
    used = generator.random(loads.shape)
    matched = generator.integers(0, 48, loads.shape)
    scores = scores_of(scorers, loads, used, matched, 48)

    def choose(loads: Any, used: Any, matched: Any, scores: Any) -> Any:
        context = context_of(loads, used, matched, 48, scores=scores)
        return weighted.decide(NoParams(), NoState(), context)[0]

    with jax.enable_x64(True):
        cases = (loads.astype(np.int32), used, matched.astype(np.int32), scores)
        chosen = np.asarray(jax.jit(jax.vmap(choose))(*cases))
    regret = scores.max(axis=1) - np.take_along_axis(scores, chosen[:, None], 1)[:, 0]
    return float(regret.max()), {"requests": float(num)}


def equal_loads(policy: str, sizes: Sequence[int] = (2, 3, 8, 16)) -> Found:
    """Count the clusters of equally loaded instances in which a request does not go to the first instance."""
    wrong = 0
    for size in sizes:
        config = ClusterConfig(num_instances=size, routing_policy=policy)
        functions, numbers = mechanism(config), params(config)
        with jax.enable_x64(True):
            for load in (0, 1, 17):
                alike = np.full(size, load), np.zeros(size), np.zeros(size, int)
                context = context_of(*alike, 8, scores=np.zeros(size))
                state = _states([functions.routing], [numbers.policy.routing])[0]
                chosen, _ = functions.routing.decide(numbers.policy.routing, state, context)
                wrong += int(chosen) != 0
    return float(wrong), {"clusters": float(3 * len(sizes))}


def overtaking_order(settings: Mapping[str, Any]) -> Found:
    """Count the queues in which a sheddable request passes a critical one at another age than gap ÷ weight predicts.

    The sheddable request is older by that age (plus its class's grace period) − 1,000 µs, then + 1,000 µs; the queue
    is ordered by priority.
    """
    config = ClusterConfig(priority_policy="slo-tiered", scheduler="priority-fcfs", **settings)
    gap = config.slo_base_critical - config.slo_base_sheddable
    crossing = gap / config.slo_age_weight + config.slo_threshold_sheddable
    violations = 0
    for age_critical in (0, 40_000, 300_000):
        for margin in (-1000, 1000):
            age = round(age_critical + crossing + margin)
            is_ahead = _sheddable_first(config, age_critical, age)
            violations += is_ahead != (margin > 0)
    return float(violations), {"gap": gap, "crossing_s": crossing / 1e6}


def _sheddable_first(config: ClusterConfig, age_critical: int, age_sheddable: int) -> bool:
    """Return whether a queue of one critical and one sheddable request puts the sheddable one first."""
    functions, numbers = mechanism(config), params(config).policy
    with jax.enable_x64(True):
        clock = jnp.int64(10_000_000)
        arrival = clock - jnp.asarray([age_critical, age_sheddable], jnp.int64)
        rank = jnp.asarray([1, 0], jnp.int32)  # the sheddable one came first
        zero = jnp.zeros(2, jnp.int32)
        view = RequestView(jnp.asarray([1, 3], jnp.int32), zero, arrival, zero, rank, rank)
        waits, first = jnp.ones(2, bool), jnp.int32(0)
        context = QueueContext(view, waits, arrival, zero, jnp.int32(2), clock, first, None)
        priority, _ = functions.priority.decide(numbers.priority, NoState(), context)
        context = dataclasses.replace(context, priority=priority)
        (value, tie), _ = functions.scheduler.decide(numbers.scheduler, NoState(), context)
        order = np.lexsort((np.asarray(tie), np.asarray(value)))
    return int(order[0]) == 1


PROBES: Mapping[str, Callable[..., Found]] = {
    "affinity_thresholds": affinity_thresholds,
    "match_ratios": match_ratios,
    "affinity_algebra": affinity_algebra,
    "argmax_regret": argmax_regret,
    "equal_loads": equal_loads,
    "overtaking_order": overtaking_order,
}


ENGINE, BATCH, INITIAL = "gp_minimize", 1, 10  # the record's own search


def spread_ratio(
    strategy: str,
    few: Sequence[str],
    many: Sequence[str],
    calls: int,
    restarts: int,
    settings: Mapping[str, Any] | None = None,
) -> tuple[float, Mapping[str, float]]:
    """Return the standard deviation of the best scores with `many` parameters ÷ that with `few`, and the numbers behind
    it.

    Both searches have the same mechanism and objective, on common seeds; `restarts` is the number of random states of
    the search, and `settings` replace some of the mechanism's.
    """
    spreads, parts = [], {}
    for names in (few, many):
        best = best_scores(strategy, names, calls, restarts, settings or {})
        spreads.append(float(np.std(best, ddof=1)))
        parts[f"mean with {len(names)}"] = float(np.mean(best))
        parts[f"spread with {len(names)}"] = spreads[-1]
    return spreads[1] / spreads[0] if spreads[0] else float("nan"), parts


def best_scores(
    strategy: str, names: Sequence[str], calls: int, restarts: int, settings: Mapping[str, Any]
) -> np.ndarray:
    """Return each restart's best score when the search varies only these parameters `[restart]`."""
    whole = load_strategy(strategy)
    kept = [place for place, entry in enumerate(whole.parameters) if entry.name in names]
    reduced = whole.model_copy(
        update={
            "mechanism": {**whole.mechanism, **settings},
            "parameters": tuple(whole.parameters[place] for place in kept),
            "parameter_paths": tuple(whole.parameter_paths[place] for place in kept),
        }
    )
    budget = {"engine": ENGINE, "calls": calls, "initial": INITIAL, "batch": BATCH}
    names_needed = Valuation(reduced).names
    experiment = Experiment.on(
        workload_of(reduced), reduced.seeds, "reference", names_needed, configs_per_batch=BATCH
    )
    scores = []
    for state in range(restarts):
        changed = whole.search.model_copy(update={**budget, "random_state": state})
        strategy_now = reduced.model_copy(update={"search": changed})
        space, valuation = space_of(strategy_now), Valuation(strategy_now)
        tried = search(make(space, changed), valuation, runs_at(space, experiment))
        best = best_of(tried)
        scores.append(best.worth.score if best is not None else np.nan)
    return np.array(scores)
