"""Predictions of what a file of runs asks for: every scene simulated once, every cell with an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from blis_jax.errors import ConfigError
from blis_jax.predict.figures import predicted
from blis_jax.predict.learned import Learned
from blis_jax.predict.scene import Scene
from blis_jax.predict.simulation import Simulated, simulated
from blis_jax.predict.units import Cell, Unit


class Value(NamedTuple):
    """A prediction and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Predicted:
    """A unit with what was predicted, or why nothing was."""

    unit: Unit
    values: Mapping[Cell, Value]
    problem: str = ""


def predict(
    units: Sequence[Unit], learned: Learned, told: Callable[[int], None] = lambda done: None
) -> list[Predicted]:
    """Predict all units; one that cannot be predicted says why, and the others go on.

    Args:
        units: what is asked for.
        learned: coefficients, and how far predictions were off.
        told: is told after every unit how many are done.
    """
    known: dict[Scene, Simulated] = {}
    found = []
    for number, unit in enumerate(units):
        found.append(_predicted(unit, learned, known))
        told(number + 1)
    return found


def _predicted(unit: Unit, learned: Learned, known: dict[Scene, Simulated]) -> Predicted:
    scene = unit.scene
    if scene is None:
        return Predicted(unit, {}, unit.problem)
    try:
        if scene not in known:
            known[scene] = simulated(scene, learned.beta_on(scene.server.hardware))
        values = {cell: _value(scene, known[scene], cell, learned) for cell in unit.cells}
    except ConfigError as error:
        return Predicted(unit, {}, str(error))
    return Predicted(unit, values)


def _value(scene: Scene, requests: Simulated, cell: Cell, learned: Learned) -> Value:
    value = predicted(scene, requests, cell, learned.client)
    server = scene.server
    return Value(value, *learned.interval(cell.figure, value, server.model, server.hardware))
