"""Every routing decision of one run: each scorer's values, as the router saw them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.policies.contract import GatewayContext, Policy

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from blis_jax.workload.table import RequestTable


@dataclass(frozen=True)
class RunDecisions:
    """Values of the scorers before clamping, and what they could have been about."""

    names: tuple[str, ...]
    weights: Float[np.ndarray, "scorer"]  # sum to 1
    scores: Float[np.ndarray, "scorer decision instance"]
    loads: Int[np.ndarray, "decision instance"]
    matched: Int[np.ndarray, "decision instance"]  # prompt blocks in the router's index

    @property
    def num_decisions(self) -> int:
        """How many requests were routed."""
        return int(self.scores.shape[1])

    def total(self, without: str | None = None) -> Float[np.ndarray, "decision instance"]:
        """Weighted sums, perhaps without one scorer."""
        clamped = np.clip(self.scores, 0.0, 1.0)
        kept = np.array([name != without for name in self.names])
        return np.einsum("s,sdi->di", self.weights * kept, clamped)

    def is_flat(self, name: str) -> Bool[np.ndarray, "decision"]:
        """Where a scorer gives all instances one value."""
        values = self.scores[self.names.index(name)]
        return values.max(axis=1) == values.min(axis=1)

    def spread(self, name: str) -> float:
        """Mean difference between the best and the worst instance."""
        values = np.clip(self.scores[self.names.index(name)], 0.0, 1.0)
        return float((values.max(axis=1) - values.min(axis=1)).mean())

    def decides(self, name: str) -> float:
        """Share of decisions that would fall otherwise without the scorer, all else as it was."""
        one, other = self.total().argmax(axis=1), self.total(name).argmax(axis=1)
        return float((one != other).mean())

    def agreement(self, name: str, other: Float[np.ndarray, "decision instance"]) -> float:
        """Share of ordered pairs of instances that a scorer orders as `other` does; NaN without pairs."""
        values = self.scores[self.names.index(name)]
        sign = np.sign(values[:, :, None] - values[:, None, :])
        theirs = np.sign(other[:, :, None] - other[:, None, :])
        is_ordered = (sign != 0) | (theirs != 0)
        return float((sign == theirs)[is_ordered].mean()) if is_ordered.any() else float("nan")

    def narrow(self, relative: float) -> float:
        """Share of decisions in which best and second differ by rounding only, yet are not equal."""
        ordered = np.sort(self.total(), axis=1)
        if ordered.shape[1] < 2:
            return 0.0
        margin = ordered[:, -1] - ordered[:, -2]
        return float(((margin > 0) & (margin <= relative * np.abs(ordered[:, -1]))).mean())


def decisions_of(config: ClusterConfig, table: RequestTable, seed: int) -> RunDecisions | None:
    """The decisions of a run on the requests of a seed; None unless routing is weighted."""
    import jax

    from blis_jax.engine.mechanism import mechanism
    from blis_jax.policies.seeds import policy_seed
    from blis_jax.runs.calls import Call, Results, execute
    from blis_jax.runs.driver import Runner
    from blis_jax.runs.options import Options
    from blis_jax.runs.runs import GivenRun, Row

    if not config.scorers():
        return None
    log: dict[int, dict[int, Any]] = {}
    functions = mechanism(config)
    spies = [_spy(scorer, place, log) for place, scorer in enumerate(functions.scorers)]
    spies[0] = _spy_on_view(spies[0], log)
    # lanes would evaluate scorers where nothing is routed, and note it
    options = Options(form="rows")
    run = GivenRun(Row(config, table, policy_seed(seed)), options)
    run.functions = dataclasses.replace(functions, scorers=tuple(spies))

    def noted(call: Call) -> Results:
        log.clear()  # of an earlier call that was not the last
        results = execute(call)
        jax.effects_barrier()
        return results

    Runner(options, num_rows=1).alone(run, noted)
    return _collected(config, log)


def _spy(scorer: Policy, place: int, log: dict[int, dict[int, Any]]) -> Policy:
    """The scorer, its values noted; as pairs of 32 bits, since a callback may not see 64."""
    import jax
    import jax.numpy as jnp

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
    import jax

    def note(rank: Any, load: Any, matched: Any) -> None:
        log.setdefault(int(rank), {})[-1] = (np.asarray(load), np.asarray(matched))

    def spying(params: Any, state: Any, context: GatewayContext) -> Any:
        seen = context.snapshots.effective_load, context.snapshots.prefix_match_blocks
        jax.debug.callback(note, context.request.tie_rank, *seen)
        return scorer.decide(params, state, context)

    return dataclasses.replace(scorer, decide=spying)


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
