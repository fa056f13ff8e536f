"""Predictions of what a file of runs asks for: every scene simulated once, every cell with an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from blis_jax.errors import ConfigError
from papers.real_servers.predict.closed import simulated_loop
from papers.real_servers.predict.figures import predicted
from papers.real_servers.predict.learned import Learned
from papers.real_servers.predict.scene import AskedCell, ClosedLoad, Scene, Unit
from papers.real_servers.predict.simulation import SimulatedRequests, simulated

if TYPE_CHECKING:
    pass


class PredictedValue(NamedTuple):
    """A prediction and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PredictedUnit:
    """A unit with what was predicted, or why nothing was."""

    unit: Unit
    values: Mapping[AskedCell, PredictedValue]
    problem: str = ""


def predict(
    units: Sequence[Unit], learned: Learned, told: Callable[[int], None] = lambda done: None
) -> list[PredictedUnit]:
    """Predict all units; one that cannot be predicted says why, and the others go on.

    Args:
        units: what is asked for.
        learned: coefficients, and how far predictions were off.
        told: is told after every unit how many are done.
    """
    known: dict[Scene, SimulatedRequests] = {}
    found = []
    for number, unit in enumerate(units):
        found.append(_predicted(unit, learned, known))
        told(number + 1)
    return found


def with_configs(units: Sequence[Unit], folder: Path) -> list[Unit]:
    """Give the units the model descriptions that lie in a folder, by the last part of a model's name.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give one that holds options.command/config.json")
    by_name = {path.parent.name.lower(): path for path in folder.glob("*/config.json")}

    def described(unit: Unit) -> Unit:
        if unit.scene is None:
            return unit
        path = by_name.get(unit.scene.server.model.rpartition("/")[2].lower())
        if path is None:
            return unit
        server = replace(unit.scene.server, model_config=str(path))
        return replace(unit, scene=replace(unit.scene, server=server))

    return [described(unit) for unit in units]


def _predicted(
    unit: Unit, learned: Learned, known: dict[Scene, SimulatedRequests]
) -> PredictedUnit:
    scene = unit.scene
    if scene is None:
        return PredictedUnit(unit, {}, unit.problem)
    try:
        if scene not in known:
            known[scene] = _simulated(scene, learned)
        values = {cell: _value(scene, known[scene], cell, learned) for cell in unit.cells}
    except ConfigError as error:
        return PredictedUnit(unit, {}, str(error))
    return PredictedUnit(unit, values)


def _simulated(scene: Scene, learned: Learned) -> SimulatedRequests:
    """Closed loops in segments by the fitted step law, all else by the engine."""
    beta = learned.beta_on(scene.server.hardware)
    if beta is not None and isinstance(scene.load, ClosedLoad):
        return simulated_loop(scene, beta, learned.view)
    return simulated(scene, beta)


def _value(
    scene: Scene, requests: SimulatedRequests, cell: AskedCell, learned: Learned
) -> PredictedValue:
    value = predicted(scene, requests, cell, learned.client_of(scene))
    return PredictedValue(value, *learned.interval(cell.figure, value, scene))
