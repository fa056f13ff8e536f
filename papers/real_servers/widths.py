"""How wide intervals of predictions are: from errors on runs held out, by figure, kind of row and group of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from blis_jax.lazy import stats
from papers.real_servers.predict.learned import (
    COVERAGE,
    OF_POOLS,
    Learned,
    deployment_key,
    layout_key,
    software_key,
)
from papers.real_servers.predict.scene import Scene

HalfWidths = Mapping[str, Mapping[str, float]]  # in logarithms, by figure and kind of row
Width = Callable[..., float]  # of errors of one figure and kind, and for how many groups
DRAWS = 2000  # of groups, for the interval of a share


NOTHING = 1e-12  # below every width


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
        """Return how far the prediction is off, as a logarithm and without its sign."""
        return abs(math.log(self.predicted / self.measured))


class HeldShare(NamedTuple):
    """How many of some figures lay in intervals made without their group."""

    figures: int
    groups: int
    held: float  # share
    of_groups: Mapping[str, tuple[int, int]]  # how many were held, and of how many, by group


def group_of(scene: Scene, kind: str) -> str:
    """Return the name of the group of runs that are new in the same way as a left-out run of this kind."""
    if kind == "other_model":
        return scene.server.model.lower()
    if kind == "other_software":
        return software_key(scene.server)
    if kind == "other_hardware":
        return scene.server.hardware
    return deployment_key(scene.server) if kind == "other_deployment" else layout_key(scene)


def width(errors: Sequence[Error], of_groups: int = 0) -> float:
    """Return half of an interval, in logarithms, that holds the share `COVERAGE` of figures of a group like these.

    It holds that share both where groups weigh alike and where figures do: large groups may be the hard ones.

    Args:
        errors: of one figure and kind; with fewer than two groups the result is infinite.
        of_groups: the number of groups that sets how wide the interval is; 0: as many as the errors have.
    """
    count = len({error.group for error in errors})
    return math.inf if count < 2 else _quantile_of(errors) * few(of_groups or count)


def stretched(errors: Sequence[Error], of_groups: int = 0) -> float:
    """Return `width`, multiplied by the factor that its groups, each left out in turn, ask for.

    One load may be harder than all others, and widths without it then hold too few of its figures. The factor holds the
    share `COVERAGE` of all figures, each measured in widths made without its own group.
    """
    names, half = list(dict.fromkeys(error.group for error in errors)), width(errors, of_groups)
    if len(names) < 3:
        return half
    sizes, groups = [], []
    for name in names:
        stay = [error for error in errors if error.group != name]
        without = max(width(stay, of_groups or len(names)), NOTHING)
        out = [error.size / without for error in errors if error.group == name]
        sizes += out
        groups += [name] * len(out)
    return half * max(_quantile(sizes, groups), 1.0)


def _quantile_of(errors: Sequence[Error]) -> float:
    return _quantile([error.size for error in errors], [error.group for error in errors])


def _quantile(sizes: Sequence[float], groups: Sequence[str]) -> float:
    """Return the size that the share `COVERAGE` keep, both where groups weigh alike and where figures do."""
    order = np.argsort(sizes)
    by_group = np.array([1.0 / groups.count(name) for name in groups])[order] / len(set(groups))
    alike = np.full(len(sizes), 1.0 / len(sizes))
    places = [np.searchsorted(np.cumsum(weight), COVERAGE - 1e-12) for weight in (by_group, alike)]
    return sizes[order[min(int(max(places)), len(order) - 1)]]


def few(groups: int) -> float:
    """Return how many times as wide an interval from this many groups is as one from very many."""
    tail = (1 + COVERAGE) / 2
    wide = stats.t.ppf(tail, groups - 1) * math.sqrt(1 + 1 / groups)
    return float(wide / stats.norm.ppf(tail))


def by_figure_and_kind(errors: Iterable[Error]) -> dict[tuple[str, str], list[Error]]:
    """Sort errors by figure and kind; those without a kind count nowhere."""
    by_key: dict[tuple[str, str], list[Error]] = {}
    for error in errors:
        if error.kind:
            by_key.setdefault((error.figure, error.kind), []).append(error)
    return by_key


def half_widths(
    errors: Iterable[Error], least: HalfWidths = MappingProxyType({}), of: Width = width
) -> dict[str, dict[str, float]]:
    """Return half-widths by figure and kind, where two groups or more allow one; none is below `least`.

    `of` is `width` or `stretched`.
    """
    halves: dict[str, dict[str, float]] = {}
    for (figure, kind), of_key in by_figure_and_kind(errors).items():
        if math.isfinite(half := of(of_key)):
            halves.setdefault(figure, {})[kind] = max(half, least.get(figure, {}).get(kind, 0.0))
    return halves


def check(errors: Sequence[Error], of: Width = width) -> HeldShare:
    """Make an interval of one figure and kind without each group in turn, and count the group's figures in it.

    Each interval is as wide for the number of groups as the interval of all groups.
    """
    groups = list(dict.fromkeys(error.group for error in errors))
    of_groups = {}
    for name in groups:
        half = of([error for error in errors if error.group != name], len(groups))
        are_held = [error.size <= half for error in errors if error.group == name]
        of_groups[name] = sum(are_held), len(are_held)
    held = sum(number for number, _ in of_groups.values()) / len(errors)
    return HeldShare(len(errors), len(groups), held, of_groups)


def checks(errors: Iterable[Error], of: Width = width) -> Mapping[tuple[str, str], HeldShare]:
    """Return `check` by figure and kind, where three groups or more make it possible."""
    shares = {key: check(of_key, of) for key, of_key in by_figure_and_kind(errors).items()}
    return {key: held for key, held in shares.items() if held.groups > 2}


def together(shares: Iterable[HeldShare]) -> tuple[float, float, float]:
    """Return the held share of all figures of a kind, and its 95 % interval, groups drawn with replacement."""
    counts: dict[str, np.ndarray] = {}
    for share in shares:
        for name, of_group in share.of_groups.items():
            counts[name] = counts.get(name, 0) + np.array(of_group)
    each = np.array(list(counts.values()))
    drawn = each[np.random.default_rng(0).integers(0, len(each), (DRAWS, len(each)))].sum(axis=1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    return float(each[:, 0].sum() / each[:, 1].sum()), float(low), float(high)


# --- rows kept apart from everything --------------------------------------------------------------
# Left-out runs are not new to all of a study: a dozen coefficients of the law, the terms and the priors have seen them.
# So some rows are kept apart and the whole study is made without them, several times. How far such rows lie, in
# half-widths of the intervals that the others made, says how much wider these have to be. A kind is widened where
# enough groups of rows were kept.

FEWEST_GROUPS = 10
Apart = Sequence[Sequence[Error]]  # by study without some rows, theirs; sizes in half-widths


class HeldApart(NamedTuple):
    """How many of the figures kept apart lay in their intervals, before and after these were widened."""

    figures: int
    before: float
    after: float  # widened by what the rows of the other studies asked for


def in_half_widths(error: Error, learned: Learned, scene: Scene) -> Error | None:
    """Return a prediction's error in half-widths of its interval; None where it has none or is new in two ways."""
    kinds = learned.seen.unseen(scene)
    _, high = learned.interval(error.figure, 1.0, scene)
    if len(kinds) > 1 or not math.isfinite(high):
        return None
    kind = f"{kinds[0]}{OF_POOLS}" if scene.server.pools else kinds[0]
    ratio = math.exp(error.size / math.log(high))
    return Error(error.run, error.figure, None, ratio, 1.0, kind, group_of(scene, kinds[0]))


def stretches(apart: Apart) -> dict[tuple[str, str], float]:
    """Return by figure and kind the factor by which intervals must be widened; 1 where they hold, or too few groups
    tell.
    """
    by_key = by_figure_and_kind(error for of_one in apart for error in of_one)
    groups = {key: len({error.group for error in of_key}) for key, of_key in by_key.items()}
    return {
        key: max(_quantile_of(of_key), 1.0) if groups[key] >= FEWEST_GROUPS else 1.0
        for key, of_key in by_key.items()
    }


def widened(halves: HalfWidths, apart: Apart, suffix: str = "") -> dict[str, dict[str, float]]:
    """Return half-widths as wide as rows kept apart ask for; in `apart`, names of kinds end with `suffix`."""
    factor = stretches(apart)
    return {
        figure: {
            kind: half * factor.get((figure, f"{kind}{suffix}"), 1.0)
            for kind, half in of_kind.items()
        }
        for figure, of_kind in halves.items()
    }


def held_apart(apart: Apart) -> dict[tuple[str, str], HeldApart]:
    """Return by figure and kind what intervals hold of the rows kept apart."""
    before: dict[tuple[str, str], list[bool]] = {}
    after: dict[tuple[str, str], list[bool]] = {}
    for place, of_one in enumerate(apart):
        factor = stretches([*apart[:place], *apart[place + 1 :]])
        for key, of_key in by_figure_and_kind(of_one).items():
            before.setdefault(key, []).extend(error.size <= 1 for error in of_key)
            after.setdefault(key, []).extend(error.size <= factor.get(key, 1.0) for error in of_key)
    return {
        key: HeldApart(len(held), float(np.mean(held)), float(np.mean(after[key])))
        for key, held in before.items()
    }
