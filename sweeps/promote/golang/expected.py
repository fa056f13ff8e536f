"""What the simulated policy decides on a batch of readings: its own jaxpr, computed equation by equation.

The manifest's formulas turn readings into signals; draws are inputs, as Go's generator is another one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sweeps.promote.golang.functions import Function
from sweeps.promote.golang.sources import Plugin
from sweeps.promote.golang.terms import camel, exported
from sweeps.promote.golang.tracing import PromotedRule, Traced, decide_jaxpr


@dataclass(frozen=True)
class Batch:
    """Hold vectors of one number of endpoints: arrays by reading, the vector's number first."""

    size: int
    readings: Mapping[str, Any]  # [vector] or [vector, endpoint]
    parameter_set: Any  # [vector]
    draws: Any  # [vector, draw]
    state: Mapping[str, Any]  # [vector]


@dataclass(frozen=True)
class ExpectedDecisions:
    """Hold decisions and states after them, the vector's number first."""

    decisions: Sequence[Any]
    state: Mapping[str, Any]


def expected(
    plugin: Plugin, batch: Batch, sets: Sequence[Mapping[str, float]]
) -> ExpectedDecisions:
    """Return the simulated policy's own decisions on a batch."""
    rule = plugin.function.rule
    traced = _traced(rule, batch.size)
    inputs = [
        _argument(plugin, batch, sets, path, aval)
        for path, aval in zip(traced.paths, traced.jaxpr.in_avals, strict=True)
    ]
    axes = [None if axis is None else 0 for _, axis in inputs]

    def decide(draws: Any, *arguments: Any) -> Any:
        return tuple(
            evaluated(traced.jaxpr, arguments, iter(_shaped(draws, plugin.function, batch.size)))
        )

    outputs = jax.vmap(decide, in_axes=(0, *axes))(
        jnp.asarray(batch.draws), *(value for value, _ in inputs)
    )
    num = 2 if rule.is_order else 1
    state = {
        name: np.asarray(value)
        for name, value in zip(plugin.function.state, outputs[num:], strict=True)
    }
    return ExpectedDecisions([np.asarray(value) for value in outputs[:num]], state)


@functools.lru_cache(maxsize=8)
def _traced(rule: PromotedRule, size: int) -> Traced:
    return decide_jaxpr(rule, size)


def _shaped(draws: Any, function: Function, size: int) -> Iterator[Any]:
    at = 0
    for draw in function.draws:
        length = size if draw.is_of_endpoint else 1
        part = draws[at : at + length]
        yield part if draw.is_of_endpoint else part[0]
        at += length


def evaluated(jaxpr: Any, arguments: Sequence[Any], draws: Iterator[Any]) -> list[Any]:
    """Return the results of a closed jaxpr, equation by equation, with the draws in place of `jax.random.uniform`.

    Nothing is fused: every operation is rounded by itself. Draws of one key are one draw, as in the compiled graph.
    """
    return _evaluated(jaxpr.jaxpr, jaxpr.consts, arguments, draws, {})


def _evaluated(
    jaxpr: Any, consts: Any, arguments: Any, draws: Iterator[Any], drawn: dict[Any, Any]
) -> list[Any]:
    known: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else known[variable]

    known.update(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))
    for equation in jaxpr.eqns:
        values = [read(variable) for variable in equation.invars]
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if equation.params.get("name") == "_uniform":
            key = (id(values[0]), equation.outvars[0].aval.shape)
            if key not in drawn:
                drawn[key] = (
                    values[0],
                    next(draws),
                )  # the key is kept, so that its id stays its own
            results = [_between(drawn[key][1], *values[1:])]
        elif inner is not None:
            results = _evaluated(
                getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), values, draws, drawn
            )
        else:
            bound = equation.primitive.bind(*values, **equation.params)
            results = bound if equation.primitive.multiple_results else [bound]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _between(number: Any, low: Any, high: Any) -> Any:
    if low == 0.0 and high == 1.0:
        return number
    return jnp.maximum(low, number * (high - low) + low)


def _argument(
    plugin: Plugin, batch: Batch, sets: Any, path: str, aval: Any
) -> tuple[Any, int | None]:
    """Return an input of the jaxpr for all vectors, and its axis of vectors if it has one."""
    sort, _, rest = path.partition(".")
    if str(aval.dtype).startswith("key<"):
        return jax.random.key(0), None
    if sort == "params":
        return _number(plugin, batch, sets, rest), 0
    if sort == "state":
        return jnp.asarray(batch.state[exported(rest)], aval.dtype), 0
    if rest == "snapshots.is_active":
        return jnp.ones(aval.shape, bool), None
    if rest in ("request.tie_rank", "request.queue_rank") and plugin.kind == "order":
        return jnp.asarray(_ranks(plugin, batch), aval.dtype), 0
    read = next((read for read in plugin.function.inputs if read.signal.path == rest), None)
    if read is None:
        return jnp.zeros(aval.shape, aval.dtype), None
    return jnp.asarray(_signal(batch, read.signal, read.signal.is_aggregated), aval.dtype), 0


def _signal(batch: Batch, signal: Any, is_aggregated: bool) -> Any:
    values = signal.values({name: np.asarray(batch.readings[name]) for name in signal.readings})
    return values.max(axis=1) if is_aggregated else values


def _number(plugin: Plugin, batch: Batch, sets: Any, path: str) -> Any:
    """Return a parameter; one without effect has its declared value."""
    rule, field = plugin.function.rule, path
    place = 0
    if rule.is_order:
        first, _, field = path.partition(".")
        place = int(first)
    default = float(getattr(rule.policies[place].values(), field))
    keys = {parameter.key for parameter in plugin.function.parameters}
    plain_key = camel(field)
    key = (
        camel(f"scheduler_{field}") if place and camel(f"scheduler_{field}") in keys else plain_key
    )
    if key not in keys:
        return jnp.full(len(batch.parameter_set), default)
    return jnp.asarray(np.array([sets[at][key] for at in batch.parameter_set]))


def _ranks(plugin: Plugin, batch: Batch) -> Any:
    """Return places by time, then by the text of the id: the first request's id is the lesser one."""
    (name,) = plugin.rank_readings
    times = np.asarray(batch.readings[name])
    is_second_first = times[:, 1] < times[:, 0]
    return np.stack([is_second_first, ~is_second_first], axis=1).astype(np.int32)
