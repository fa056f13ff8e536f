"""Test vectors: random readings of the target, and the decisions of the simulated policy on them.

The policy's jaxpr is evaluated equation by equation. The manifest's formulas turn readings into signals. Random draws
are inputs, as Go has another generator.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.files.atomic_write import finite
from sweeps.promote.golang.functions import Function, PluginParameter
from sweeps.promote.golang.sources import Plugin
from sweeps.promote.golang.target import TargetReading
from sweeps.promote.golang.terms import camel, exported
from sweeps.promote.golang.tracing import PromotedRule, Traced, decide_jaxpr, evaluated

SIZES = (1, 4)  # endpoints
_PER_SIZE = 512
_NUM_EMPTY = 8
_HALVINGS = 10
_PARAMETER_SETS = 8
_SEED = 20260821


def vectors_json(plugin: Plugin) -> str:
    """Return the file that the Go test reads: the parameter sets, then one vector per line."""
    generator = np.random.Generator(np.random.PCG64(_SEED))
    function = plugin.function
    sets = parameter_sets(function.parameters, generator)
    lines = []
    with jax.enable_x64(True):
        for turn, size in enumerate((2, 2) if function.rule.is_order else SIZES):
            batch = _drawn(plugin, size, len(sets), generator, sets)
            decided = expected(plugin, batch, sets)
            vectors = list(_lines(plugin, batch, decided))
            if turn == 1:
                vectors += _edges(plugin, batch, decided, sets)
            if size == 1:
                lines += [_emptied(plugin, line) for line in vectors[:_NUM_EMPTY]]
            lines += vectors
    parameters = ",\n".join(json.dumps(numbers) for numbers in sets)
    return f'{{"parameters": [\n{parameters}\n],\n"vectors": [\n' + ",\n".join(lines) + "\n]}\n"


# --- parameters -----------------------------------------------------------------------------------


def parameter_sets(parameters: Sequence[PluginParameter], generator: Any) -> list[dict[str, float]]:
    """Return parameter sets for the test: the strategy's values, the defaults, and random allowed values."""
    sets = [
        {parameter.key: parameter.value for parameter in parameters},
        {parameter.key: float(parameter.number.default) for parameter in parameters},
    ]
    while len(sets) < _PARAMETER_SETS:
        sets.append({parameter.key: parameter.drawn(generator) for parameter in parameters})
    return sets


# --- readings -------------------------------------------------------------------------------------


def _drawn(plugin: Plugin, size: int, num_sets: int, generator: Any, sets: Any) -> Batch:
    count = _PER_SIZE
    readings: dict[str, Any] = {}
    order = sorted(plugin.readings, key=lambda reading: "at_most" in reading.declared["draws"])
    for reading in order:
        is_row = reading.is_of_endpoint or (plugin.function.rule.is_order and reading.of != "clock")
        readings[reading.name] = _values(
            reading, (count, size) if is_row else (count,), readings, generator
        )
    draws = generator.random((count, _num_draws(plugin.function, size)))
    parameter_set = generator.integers(0, num_sets, count)
    state = {
        name: _state_values(dtype, sets, parameter_set, generator)
        for name, dtype in plugin.function.state.items()
    }
    batch = Batch(size, readings, parameter_set, draws, state)
    return _continued(plugin, batch, sets, generator) if state else batch


def _continued(plugin: Plugin, batch: Batch, sets: Any, generator: Any) -> Batch:
    """Replace most states by states after a decision, some with one field rescaled, as they occur in a long run."""
    after = expected(plugin, batch, sets).state
    count = len(batch.parameter_set)
    is_after, scaled = (
        generator.random(count) < 0.75,
        generator.integers(-1, len(batch.state), count),
    )
    state = {}
    for place, (name, values) in enumerate(batch.state.items()):
        sizes = np.where(scaled == place, 10.0 ** generator.uniform(-1, 3, count), 1.0)
        state[name] = np.where(is_after, (after[name] * sizes).astype(values.dtype), values)
    readings = {
        name: np.where(_rows(is_after, values), np.roll(values, 1, axis=0), values)
        for name, values in batch.readings.items()
    }
    return dataclasses.replace(batch, state=state, readings=readings)


def _rows(where: Any, values: Any) -> Any:
    return where.reshape(-1, *(1,) * (values.ndim - 1))


def _values(
    reading: TargetReading, shape: tuple[int, ...], known: Mapping[str, Any], generator: Any
) -> Any:
    """Draw the values of a reading, row by row in one of several styles: random, all equal, zero, tied, huge."""
    draws = reading.declared["draws"]
    low, high = draws.get("low", 0), draws["high"]
    is_real = reading.type == "float64"
    values = (
        generator.uniform(low, high, shape) if is_real else generator.integers(low, high + 1, shape)
    )
    rows = values if values.ndim == 2 else values[:, None]
    styles = generator.integers(0, 8, len(rows))
    few = (
        np.array([low, (low + high) / 2, high])
        if is_real
        else np.arange(low, min(low + 3, high + 1))
    )
    for row, style in enumerate(styles):
        if style == 1 or draws.get("shared"):
            rows[row] = rows[row, 0]
        if style == 2:
            rows[row] = low
        elif style in (3, 4):
            rows[row] = generator.choice(few, rows.shape[1])
        elif style == 5 and "huge" in draws:
            rows[row] = generator.integers(draws["huge"] // 2, draws["huge"], rows.shape[1])
        if draws.get("shared"):
            rows[row] = rows[row, 0]
    values = rows if values.ndim == 2 else rows[:, 0]
    most = known.get(str(draws.get("at_most")))
    return values if most is None else np.minimum(values, most)


def _num_draws(function: Function, size: int) -> int:
    return sum(size if draw.is_of_endpoint else 1 for draw in function.draws)


def _state_values(dtype: str, sets: Any, parameter_set: Any, generator: Any) -> Any:
    """Draw states between 0 and the largest parameter, some of them 0; a bool is true or false at random."""
    if dtype == "bool":
        return generator.random(len(parameter_set)) < 0.5
    scales = [max(numbers.values(), default=100.0) for numbers in sets]
    scale = np.array([scales[at] for at in parameter_set])
    values = generator.uniform(0, 1, len(scale)) * scale
    values[generator.random(len(scale)) < 0.2] = 0
    return np.floor(values).astype(np.int64) if dtype.startswith("int") else values


def _edges(plugin: Plugin, batch: Batch, decided: ExpectedDecisions, sets: Any) -> list[str]:
    """Return pairs of vectors just before and after a decision changes, so that a slightly wrong number fails on one.

    A bisection between a vector and its neighbour finds each pair; the priority stays that of the vector.
    """
    if plugin.kind == "scorer":
        return []
    far = {
        name: values if name == "priority" else np.roll(values, 1, axis=0)
        for name, values in batch.readings.items()
    }
    low, high = batch, dataclasses.replace(batch, readings=far)
    first, last = _choices(decided), _choices(expected(plugin, high, sets))
    changes = first != last
    for _ in range(_HALVINGS):
        middle = dataclasses.replace(batch, readings=_between_readings(low.readings, high.readings))
        is_low = _choices(expected(plugin, middle, sets)) == first
        low, high = _chosen(is_low, middle, low), _chosen(~is_low, middle, high)
    edges = []
    for edge in (low, high):
        lines = list(_lines(plugin, edge, expected(plugin, edge, sets)))
        edges += [line for line, is_edge in zip(lines, changes, strict=True) if is_edge]
    return edges


def _choices(decided: ExpectedDecisions) -> Any:
    """Return a number for each vector; equal numbers mean equal decisions."""
    decision = decided.decisions[0]
    if decision.ndim == 1:
        return decision
    rank = decided.decisions[1]
    return np.where(
        decision[:, 0] != decision[:, 1], decision[:, 0] < decision[:, 1], rank[:, 0] < rank[:, 1]
    )


def _between_readings(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: (low[name] + high[name]) / 2
        if low[name].dtype.kind == "f"
        else (low[name] + high[name]) // 2
        for name in low
    }


def _chosen(where: Any, batch: Batch, other: Batch) -> Batch:
    readings = {
        name: np.where(_rows(where, values), values, other.readings[name])
        for name, values in batch.readings.items()
    }
    return dataclasses.replace(batch, readings=readings)


# --- the file -------------------------------------------------------------------------------------


def _lines(plugin: Plugin, batch: Batch, expected: ExpectedDecisions) -> Iterator[str]:
    for at in range(len(batch.parameter_set)):
        vector: dict[str, Any] = {"set": int(batch.parameter_set[at]), "size": batch.size}
        for name, values in batch.readings.items():
            vector[camel(name)] = _plain(values[at])
        if plugin.function.draws:
            vector["draws"] = _plain(batch.draws[at])
        if plugin.function.state:
            vector["before"] = {name: _plain(values[at]) for name, values in batch.state.items()}
            vector["after"] = {name: _plain(values[at]) for name, values in expected.state.items()}
        vector["expected"] = _decision(plugin.function.rule, expected, at, batch.size)
        yield json.dumps(vector)


def _decision(
    rule: PromotedRule, expected: ExpectedDecisions, at: int, size: int
) -> list[float | None]:
    """Return the expected result: a scorer's scores, a router's index, or 1 or 0 of an admission or an order."""
    decision = expected.decisions[0][at]
    if rule.kind == "order":
        left, right = decision
        is_less = (
            left < right
            if left != right
            else expected.decisions[1][at][0] < expected.decisions[1][at][1]
        )
        return [float(is_less)]
    numbers = (
        np.broadcast_to(decision, (size,)) if rule.kind == "scorer" else np.reshape(decision, (1,))
    )
    return [finite(value) for value in numbers.astype(float).tolist()]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value.item()


def _emptied(plugin: Plugin, line: str) -> str:
    """Return the vector without endpoints: no scores; an admission that reads endpoints admits the request."""
    vector = json.loads(line) | {"size": 0}
    vector |= {camel(reading.name): [] for reading in plugin.readings if reading.is_of_endpoint}
    if plugin.kind in ("scorer", "routing"):
        vector["expected"] = []
    elif plugin.reads_endpoints:
        vector["expected"] = [1.0]
    if plugin.has_state and (plugin.reads_endpoints or plugin.kind != "admission"):
        vector["after"] = vector["before"]
    return json.dumps(vector)


# --- what the simulated policy decides ------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Hold vectors with the same number of endpoints: arrays by reading, whose first axis is the vector."""

    size: int
    readings: Mapping[str, Any]  # [vector] or [vector, endpoint]
    parameter_set: Any  # [vector]
    draws: Any  # [vector, draw]
    state: Mapping[str, Any]  # [vector]


@dataclass(frozen=True)
class ExpectedDecisions:
    """Hold decisions and next states; the first axis is the vector."""

    decisions: Sequence[Any]
    state: Mapping[str, Any]


def expected(
    plugin: Plugin, batch: Batch, sets: Sequence[Mapping[str, float]]
) -> ExpectedDecisions:
    """Evaluate the simulated policy on a batch; return its decisions and next states."""
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


def _argument(
    plugin: Plugin, batch: Batch, sets: Any, path: str, aval: Any
) -> tuple[Any, int | None]:
    """Return an input of the jaxpr for all vectors, and its vector axis; None for an input that all vectors share."""
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
    """Return a parameter's values by vector; the strategy's value for a parameter without effect."""
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
    """Return each request's rank by time; on equal times the first request comes first, as its id is smaller."""
    (name,) = plugin.rank_readings
    times = np.asarray(batch.readings[name])
    is_second_first = times[:, 1] < times[:, 0]
    return np.stack([is_second_first, ~is_second_first], axis=1).astype(np.int32)
