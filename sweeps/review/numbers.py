"""Judges of numbers: whether priorities and scores stay finite and smooth, and whether parameters end within ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import SLO_CLASSES, RequestView
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.policies.contexts import QueueContext
from sweeps.claims.words import CONCERN, PASS, REJECT
from sweeps.principles.probes import SHAPE, context_of
from sweeps.review.candidates import Exhibit, Judge, Looked, value_of
from sweeps.strategies.space import Dimension

if TYPE_CHECKING:
    from jaxtyping import Float, Int

HOUR_US = 3_600_000_000
DENSE_US = 5_000_000
DEPTHS = (0, 1, 10, 1000, 1_000_000)  # waiting requests
STEEPEST = 32  # places whose steepest microsecond is looked for
NEARLY = 1e-12  # relative, what rounding can do
Priority = Callable[[Any, int, int], "Float[np.ndarray, 'age']"]  # (ages, class, depth)


def look_at_numbers(exhibit: Exhibit) -> Looked:
    """Evaluate the policies on grids that contain extreme values."""
    config = exhibit.candidate.config
    codes = [
        SLO_CLASSES.index(name) if name in SLO_CLASSES else 0 for name in exhibit.candidate.classes
    ]
    narrow = exhibit.decisions.narrow(NEARLY) if exhibit.decisions is not None else 0.0
    parts = [*_on_priority(config, codes), *_on_scorers(config)]
    if narrow > 0.01:
        words = f"{narrow:.1%} of the routing decisions hang on the last bits of the scores"
        parts.append((CONCERN, words, {}))
    evidence: dict[str, Any] = {"decisions within rounding": narrow}
    for _, _, figures in parts:
        evidence |= figures
    return [(verdict, words) for verdict, words, _ in parts], evidence


Part = tuple[str, str, dict[str, Any]]  # verdict, words, figures


# --- priorities -----------------------------------------------------------------------------------


def priority_function(config: ClusterConfig) -> Priority:
    """Return a function of ages (µs), class and queue length that evaluates the configuration's priorities."""
    policy, numbers = mechanism(config).priority, params(config).policy.priority

    def evaluate(ages: Any, slo_class: Any, depth: Any, infinity: Any) -> Any:
        """Return float64[age]: priorities, without unit, of requests that are `ages[age]` µs old (int64).

        `slo_class` is the code of their class and `depth` the number of waiting requests (both int32
        scalars); `infinity` is an argument so that the compiler cannot fold products with it.
        """
        clock = jnp.int64(2 * HOUR_US)
        zero = jnp.zeros(ages.shape, jnp.int32)
        classes = jnp.full(ages.shape, slo_class, jnp.int32)
        view = RequestView(classes, zero, clock - ages, zero, zero, zero)
        waits, first = jnp.ones(ages.shape, bool), jnp.int32(0)
        context = QueueContext(
            view, waits, clock - ages, zero, depth, clock, first, jax.random.key(0), zero,
            handed=jnp.zeros(ages.shape, jnp.float64),
        )  # fmt: skip
        with runtime_infinity(infinity):
            return policy.decide(numbers, policy.start(numbers, SHAPE), context)[0]

    with jax.enable_x64(True):
        compiled = jax.jit(evaluate)

    def priorities(ages: Any, slo_class: int, depth: int) -> Float[np.ndarray, age]:
        with jax.enable_x64(True):
            ages_us = np.asarray(ages, np.int64)
            return np.asarray(
                compiled(ages_us, np.int32(slo_class), np.int32(depth), np.float64(np.inf))
            )

    return priorities


def age_grid() -> Int[np.ndarray, "age"]:
    """Return ages in µs: closely spaced for five seconds, then geometrically spaced up to an hour."""
    dense = np.arange(0, DENSE_US + 1, 1000)
    wide = np.geomspace(1, HOUR_US, 2000).astype(np.int64)
    return np.unique(np.concatenate([dense, wide]))


def _on_priority(config: ClusterConfig, codes: list[int]) -> list[Part]:
    if config.priority_policy == "constant":
        return []
    priorities, ages = priority_function(config), age_grid()
    grid = {(c, d): priorities(ages, c, d) for c in codes for d in DEPTHS}
    broken = sum(int((~np.isfinite(values)).sum()) for values in grid.values())
    if broken:
        words = f"priority {config.priority_policy} is infinite or NaN at {broken} ages of the grid"
        return [(REJECT, words, {"priorities that are not finite": broken})]
    scale = _class_gap(grid, codes)
    steepest, at_us = _steepest(priorities, grid, ages)
    falls = max(float((values[:-1] - values[1:]).max()) for values in grid.values())
    figures = {
        "gap between the classes": scale,
        "steepest change in 1 µs": steepest,
        "at age, µs": at_us,
        "largest fall with age": max(falls, 0.0),
    }
    if steepest > scale:
        words = (
            f"near {at_us / 1000:.3f} ms of age 1 µs changes the priority by {steepest:.3g}, more than the "
            f"classes differ ({scale:.3g}), so the order there is an accident"
        )
        return [(REJECT, words, figures)]
    if falls > scale:
        words = f"the priority falls by {falls:.3g} as a request gets older, the classes differ by {scale:.3g}"
        return [(REJECT, words, figures)]
    if falls > 0:
        return [(CONCERN, f"the priority falls with age, by up to {falls:.3g}", figures)]
    return [(PASS, "", figures)]


def _class_gap(grid: dict[tuple[int, int], Any], codes: list[int]) -> float:
    """Return the gap between the classes' priorities on arrival under load; without one, the worth of 10 ms of age."""
    new = [float(grid[code, DEPTHS[-1]][0]) for code in codes]
    gap = max(new) - min(new)
    if gap > 0:
        return gap
    values = grid[codes[0], DEPTHS[-1]]
    return abs(float(values[10] - values[0])) or math.ulp(1.0)


def _steepest(
    priorities: Priority, grid: dict[tuple[int, int], Any], ages: Int[np.ndarray, "age"]
) -> tuple[float, float]:
    """Return the largest change of priority in one µs, and the age there; found by bisecting steep intervals."""
    best, where = 0.0, 0.0
    for (code, depth), values in grid.items():
        change = np.abs(np.diff(values)) / np.diff(ages)
        for place in np.argsort(change)[-STEEPEST:]:
            low, high = int(ages[place]), int(ages[place + 1])
            while high - low > 1:
                middle = (low + high) // 2
                first, half, other = priorities(np.array([low, middle, high]), code, depth)
                steep = abs(half - first) * (high - middle) > abs(other - half) * (middle - low)
                low, high = (low, middle) if steep else (middle, high)
            first, other = priorities(np.array([low, high, high]), code, depth)[:2]
            if abs(other - first) > best:
                best, where = float(abs(other - first)), float(low)
    return best, where


# --- scorers --------------------------------------------------------------------------------------


def _on_scorers(config: ClusterConfig) -> list[Part]:
    functions, numbers = mechanism(config), params(config).policy
    parts: list[Part] = []
    for place, (name, _) in enumerate(config.scorers()):
        values = []
        with jax.enable_x64(True):
            for loads, used, matched, blocks in _extremes():
                for code in range(len(SLO_CLASSES)):
                    case = loads, used, matched, blocks, code, config.total_kv_blocks
                    scorer, scorer_params = functions.scorers[place], numbers.scorers[place]
                    state = scorer.start(scorer_params, SHAPE)
                    score, _ = scorer.decide(scorer_params, state, context_of(*case))
                    values.append(np.asarray(score))
        flat = np.concatenate(values)
        if not np.isfinite(flat).all():
            count = int((~np.isfinite(flat)).sum())
            words = f"scorer {name} is infinite or NaN in {count} of {len(flat)} extreme cases"
            parts.append((REJECT, words, {f"{name}, not finite": count}))
        elif flat.min() < 0 or flat.max() > 1:
            words = (
                f"scorer {name} leaves 0 to 1 ({flat.min():.3g} to {flat.max():.3g}) and is cut off"
            )
            parts.append((CONCERN, words, {f"{name}, least and most": [flat.min(), flat.max()]}))
    return parts


def _extremes() -> list[tuple[Any, Any, Any, int]]:
    """Return extreme loads, utilisations and cached blocks of instances, and the number of blocks of the prompt."""
    zeros, ones = np.zeros(4), np.ones(4)
    mixed_loads = np.array([0, 1, 10_000, 2_000_000])
    return [
        (zeros.astype(int), zeros, zeros.astype(int), 0),
        (mixed_loads, np.array([0.0, 1e-12, 0.5, 1.0]), np.array([0, 1, 50, 100]), 100),
        (np.full(4, 2_000_000), ones, np.full(4, 7600), 7600),
        (mixed_loads[::-1].copy(), ones, np.zeros(4, int), 1),
    ]


STABILITY = Judge(
    "stability",
    "priorities and scores are finite, monotone and smooth over the grid",
    "the priority policy for ages up to an hour and queues up to a million, refined to the "
    "steepest microsecond; every scorer at idle, full and extreme instances",
    look_at_numbers,
)


CLOSE = 0.02  # of the range, on its own scale


def look_at_bounds(exhibit: Exhibit) -> Looked:
    """Name the parameters whose best value may lie beyond their range."""
    space = exhibit.candidate.space()
    dimensions = space.dimensions if space is not None else ()
    evidence, verdicts = {}, []
    for dimension in dimensions:
        value = value_of(dimension, exhibit.candidate.config)
        place = position(dimension, value)
        if place is None:
            continue
        evidence[dimension.name] = {"value": value, "position": place}
        if not 0 <= place <= 1:
            words = (
                f"{dimension.name} = {value:g} lies outside of its range ({dimension.low:g} to "
                f"{dimension.high:g}), so no search has looked at it"
            )
            verdicts.append((CONCERN, words))
        elif place <= CLOSE or place >= 1 - CLOSE:
            end, limit = ("low", dimension.low) if place <= CLOSE else ("high", dimension.high)
            words = (
                f"{dimension.name} = {value:g} lies at the {end} end of its range ({limit:g}); search "
                "further, or say why it ends there"
            )
            verdicts.append((CONCERN, words))
    return verdicts if evidence else [(PASS, "there are no ranges")], evidence


def position(dimension: Dimension, value: float) -> float | None:
    """Return the position of a value in its range, 0 (low) to 1 (high); None for values without an order."""
    if dimension.kind == "categorical" or value is None:
        return None
    low, high = dimension.low, dimension.high
    if dimension.is_log and value > 0:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


BOUNDS = Judge(
    "bounds",
    "no parameter lies at an end of its range",
    "the configuration's values within the ranges of the strategy file",
    look_at_bounds,
)
