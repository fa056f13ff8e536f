"""Turn a router that chooses the instance with the highest score into a scorer: keep its scores, leave out the choice.

The search goes through the traced router for a vector of scores on which the decision depends alone, and tests on
random scores that the decision takes the greatest, or the least, of them. Ties are left to a picker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from blis_jax.core.types import EngineShape
from blis_jax.policies.contract import Policy, no_state
from blis_jax.policies.routing.by_score import shares_of, weighted_sum
from sweeps.promote.golang.tracing import FlatJaxpr

TRIED_SIZE, NUM_DRAWS, NUM_TRIALS = 5, 64, 256  # of what is tried out
BELOW_ONE = float(np.nextafter(1.0, 0.0))
Scorers = Sequence[tuple[Policy, float]]  # with their weights


@dataclass(frozen=True)
class ScoredRouter:
    """A router that chooses the arg max (or arg min) of scores.

    Attributes:
        policy: the router.
        scorers: the scorers that the router may read, with their weights.
        place: the index of the traced equation whose result is the scores; negative, counted from the end.
        sign: 1 if the greatest score is chosen, -1 if the least score is.
        draws: whether BLIS's seeded stream breaks ties; if not, a fixed rule does (mostly: the first instance).
        is_everywhere: whether this holds for scores of any size, not only for those above a start value such as -1.
    """

    policy: Policy
    scorers: Scorers
    place: int
    sign: int
    draws: bool
    is_everywhere: bool

    @property
    def scorer(self) -> Policy:
        """Return a scorer that gives 1 to the best instances and less to all others, in the order of their scores."""

        def decide(params: Any, state: Any, context: Any) -> tuple[jax.Array, Any]:
            """Rate every instance by the router's scores."""
            trace = _Trace.of(self.policy, self.scorers, params, context)
            scores = trace.value(trace.equations[self.place].outvars[0])
            scores = self.sign * scores.astype(jnp.float64)
            best, least = jnp.max(scores), jnp.min(scores)
            share = (scores - least) / (best - least)
            rest = jnp.where(share > 0, jnp.minimum(share, BELOW_ONE), 0.0)
            return jnp.where(scores == best, 1.0, rest), state

        said = (self.policy.decide.__doc__ or self.policy.name).strip().splitlines()[0]
        beyond = " Far below 0, the router compares scores with a number of its own, and this scorer does not."
        decide.__name__ = self.policy.name
        decide.__doc__ = said + beyond * (not self.is_everywhere)
        decide.__code__ = decide.__code__.replace(
            co_filename=self.policy.decide.__code__.co_filename,
            co_firstlineno=self.policy.decide.__code__.co_firstlineno,
        )
        return dataclasses.replace(
            self.policy, kind="scorer", decide=decide, start=no_state, is_random=False, signals=None
        )


def scored(policy: Policy, scorers: Scorers, context: Any) -> ScoredRouter | None:
    """Return a router with its scores; None if the router is no arg max and can only be compiled as a whole.

    Args:
        policy: the router.
        scorers: the scorers of the router's configuration, with their weights.
        context: the shapes of the router's context, for `TRIED_SIZE` instances.
    """
    with jax.enable_x64(True):
        return _scored(policy, scorers, _Trace.of(policy, scorers, policy.values(), context))


def _scored(policy: Policy, scorers: Scorers, trace: _Trace) -> ScoredRouter | None:
    for place in range(-1, -len(trace.equations) - 1, -1):
        values = trace.equations[place].outvars[0]
        aval: Any = values.aval
        if getattr(aval, "shape", None) != (TRIED_SIZE,) or str(aval.dtype) == "bool":
            continue
        if not trace.decides_by(values):
            continue
        choice = _tried(trace, values, aval.dtype, -0.05)
        if choice is not None:
            is_everywhere = _tried(trace, values, aval.dtype, -1e6) == choice
            return ScoredRouter(policy, scorers, place, *choice, is_everywhere)
    return None


def _tried(trace: _Trace, values: core.Var, dtype: Any, low: float) -> tuple[int, bool] | None:
    """Return (sign, whether draws break ties), tested on random scores from `low` to 1; None if it is no arg max."""
    rng = np.random.default_rng(0)
    scores = rng.uniform(low, 1.0, (NUM_TRIALS, TRIED_SIZE))
    scores[::2] = rng.choice([low, 0.25, 0.5, 1.0], (len(scores[::2]), TRIED_SIZE))
    if not np.issubdtype(dtype, np.floating):
        scores = np.round(scores * 4)
    scores = scores.astype(dtype)
    draws = rng.integers(0, 2**31, (NUM_TRIALS, NUM_DRAWS)).astype(np.int32)
    decide = jax.jit(jax.vmap(lambda tried, numbers: trace.decision(values, tried, numbers)))
    chosen, other = (np.asarray(decide(scores, numbers)) for numbers in (draws, draws[::-1]))
    decided = scores[np.arange(NUM_TRIALS), np.clip(chosen, 0, TRIED_SIZE - 1)]
    for sign, extreme in ((1, scores.max(axis=1)), (-1, scores.min(axis=1))):
        if (decided == extreme).all() and ((chosen >= 0) & (chosen < TRIED_SIZE)).all():
            return sign, bool((chosen != other).any())
    return None


@dataclass(frozen=True)
class _Trace:
    """A traced router with all calls inlined, and the values that it was traced with."""

    equations: list[core.JaxprEqn]
    known: dict[core.Var, Any]  # constants, and the values that it was traced with
    free: tuple[core.Var, ...]  # the stream, and the state: what breaks ties may depend on them
    decided: core.Var | core.Literal
    words: core.DebugInfo  # of JAX, for its messages

    @classmethod
    def of(cls, policy: Policy, scorers: Scorers, params: Any, context: Any) -> _Trace:
        """Trace a router on a context of arrays, tracers or shapes; all instances are active."""
        size = context.snapshots.effective_load.shape[0]
        shape = EngineShape(size, 1, 1, 1, 1)
        state = jax.eval_shape(lambda: policy.start(policy.values(), shape))
        leaves, tree = jax.tree.flatten((params, context))
        state_leaves, state_tree = jax.tree.flatten(state)
        active = np.ones(size, bool)

        def decide(draws: Any, state: Any, inputs: Any) -> Any:
            """Return the instance that the router chooses, with `draws` for ties."""
            params, context = jax.tree.unflatten(tree, inputs)
            context = dataclasses.replace(
                context, snapshots=dataclasses.replace(context.snapshots, is_active=active)
            )
            rated = [
                scorer.decide(scorer.values(), scorer.start(scorer.values(), shape), context)[0]
                for scorer, _ in scorers
            ]
            weights = np.array([weight for _, weight in scorers], np.float64)
            shares = shares_of(jnp.asarray(weights)) if rated else None
            more: dict[str, Any] = {"scores": weighted_sum(rated, shares, (size,)), "draws": draws}
            if rated:
                more |= {"scorer_scores": jnp.stack(rated), "scorer_shares": shares}
            context = dataclasses.replace(context, **more)
            return policy.decide(params, jax.tree.unflatten(state_tree, state), context)[0]

        made = jax.make_jaxpr(decide)(
            jax.ShapeDtypeStruct((NUM_DRAWS,), np.int32), state_leaves, leaves
        )
        flat = FlatJaxpr(made)
        first = 1 + len(state_leaves)
        known = flat.constants | dict(zip(made.jaxpr.invars[first:], leaves, strict=True))
        free, words = tuple(made.jaxpr.invars[:first]), made.jaxpr.debug_info.with_unknown_names()
        return cls(flat.equations, known, free, flat.outputs[0], words)

    def needed(
        self, wanted: core.Var | core.Literal, stop: core.Var | None = None
    ) -> tuple[list[core.JaxprEqn], set[core.Var]]:
        """Return the equations that compute `wanted`, and the variables that these read; `stop` counts as given."""
        waiting = {wanted} if isinstance(wanted, core.Var) else set()
        equations = []
        for equation in reversed(self.equations):
            if stop in equation.outvars:
                waiting.discard(stop)
            elif waiting.intersection(equation.outvars):
                waiting.difference_update(equation.outvars)
                waiting |= {invar for invar in equation.invars if isinstance(invar, core.Var)}
                equations.append(equation)
        waiting.discard(stop)
        return equations[::-1], waiting

    def decides_by(self, values: core.Var) -> bool:
        """Return whether the decision depends on inputs through `values` alone, and `values` not on stream or state."""
        _, rest = self.needed(self.decided, values)
        _, needs = self.needed(values)
        return self._asks(needs) and not self._asks(rest) and not needs.intersection(self.free)

    def _asks(self, variables: set[core.Var]) -> bool:
        """Return whether one of the variables is an input: a signal, or a number of the policy."""
        return any(
            isinstance(self.known.get(variable), jax.ShapeDtypeStruct) for variable in variables
        )

    def value(self, wanted: core.Var) -> Any:
        """Compute and return the value of a variable."""
        equations, inputs = self.needed(wanted)
        return self._evaluated(
            equations, {variable: self.known[variable] for variable in inputs}, wanted
        )

    def decision(self, values: core.Var, numbers: Any, draws: Any) -> Any:
        """Return the decision if the variable `values` has the value `numbers`; the router's state is all zeros."""
        equations, inputs = self.needed(self.decided, values)
        zeros = {variable: _zeros(variable.aval) for variable in self.free}
        known = {**self.known, **zeros, self.free[0]: draws, values: numbers}
        read = {variable: known[variable] for variable in inputs | {values}}
        return self._evaluated(equations, read, self.decided)

    def _evaluated(
        self,
        equations: list[core.JaxprEqn],
        known: dict[core.Var, Any],
        wanted: core.Var | core.Literal,
    ) -> Any:
        jaxpr = core.Jaxpr([], list(known), [wanted], equations, debug_info=self.words)
        (value,) = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, []))(*known.values())
        return value


def _zeros(aval: Any) -> jax.Array:
    return jnp.zeros(aval.shape, aval.dtype)
