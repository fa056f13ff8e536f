"""How wide intervals must be, by how far a row is from what a fit has seen, and whether they hold.

Errors of one server are alike, so a hundred figures of three servers say no more of a fourth than three do. Every
group of runs that was left out together therefore weighs the same, and a few groups make an interval wider, as
Student's t does for a few values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from blis_jax.lazy import stats
from papers.real_servers.predict.learned import COVERAGE, deployment_key, layout_key, software_key
from papers.real_servers.predict.scene import Scene


class Error(NamedTuple):
    """A figure that was predicted."""

    run: str
    figure: str
    stage: int | None
    predicted: float
    measured: float
    kind: str = ""  # of `KINDS`: how far its run was from those of the fit
    group: str = ""  # runs that resemble each other, and were left out together

    @property
    def percent(self) -> float:
        """Return how far the prediction is off, in % and without its sign."""
        return abs(100 * (self.predicted / self.measured - 1))

    @property
    def size(self) -> float:
        """Return the same as a logarithm."""
        return abs(math.log(self.predicted / self.measured))


class HeldShare(NamedTuple):
    """How many of some figures lay in intervals made without their group."""

    figures: int
    groups: int
    held: float  # share


def group_of(scene: Scene, kind: str) -> str:
    """Return which runs resemble a left-out run of this kind: all that are as new in the same way."""
    if kind == "other_model":
        return scene.server.model.lower()
    if kind == "other_software":
        return software_key(scene.server)
    if kind == "other_hardware":
        return scene.server.hardware
    return deployment_key(scene.server) if kind == "other_deployment" else layout_key(scene)


def width(errors: Sequence[Error], of_groups: int = 0) -> float:
    """Return half of an interval, in logarithms, that holds the share `COVERAGE` of figures of a group like these.

    Args:
        errors: of one figure and kind; without two groups there is no saying, and it is infinite.
        of_groups: as many groups as the interval is to be as wide for; 0: those of the errors.
    """
    groups = [error.group for error in errors]
    count = len(set(groups))
    if count < 2:
        return math.inf
    order = np.argsort([error.size for error in errors])
    weight = np.array([1.0 / groups.count(name) for name in groups])[order] / count
    place = int(np.searchsorted(np.cumsum(weight), COVERAGE - 1e-12))
    usual = errors[order[min(place, len(order) - 1)]].size
    return usual * few(of_groups or count)


def few(groups: int) -> float:
    """Return how much wider an interval is that so many groups make, than one that very many would."""
    tail = (1 + COVERAGE) / 2
    wide = stats.t.ppf(tail, groups - 1) * math.sqrt(1 + 1 / groups)
    return float(wide / stats.norm.ppf(tail))


def by_figure_and_kind(errors: Iterable[Error]) -> dict[tuple[str, str], list[Error]]:
    """Sort errors by figure and kind; those without a kind count nowhere."""
    found: dict[tuple[str, str], list[Error]] = {}
    for error in errors:
        if error.kind:
            found.setdefault((error.figure, error.kind), []).append(error)
    return found


def half_widths(errors: Iterable[Error]) -> dict[str, dict[str, float]]:
    """Return by figure and kind half of an interval, where two groups or more say something of it."""
    halves: dict[str, dict[str, float]] = {}
    for (figure, kind), mine in by_figure_and_kind(errors).items():
        if math.isfinite(half := width(mine)):
            halves.setdefault(figure, {})[kind] = half
    return halves


def check(errors: Sequence[Error]) -> HeldShare:
    """Make an interval of one figure and kind without each group in turn, and count what it holds of the group.

    It is made as wide for the number of groups as the one of all groups is.
    """
    groups = list(dict.fromkeys(error.group for error in errors))
    held = 0
    for name in groups:
        half = width([error for error in errors if error.group != name], len(groups))
        held += sum(error.size <= half for error in errors if error.group == name)
    return HeldShare(len(errors), len(groups), held / len(errors))


def checks(errors: Iterable[Error]) -> Mapping[tuple[str, str], HeldShare]:
    """Return `check` by figure and kind, where three groups or more make it possible."""
    found = {key: check(mine) for key, mine in by_figure_and_kind(errors).items()}
    return {key: one for key, one in found.items() if one.groups > 2}
