"""The engines that are compared, all told of branches, and `ensemble` with one part left out.

`ensemble` and `turbo` know branches themselves. For the others a branch is a parameter more, off or on,
and the first points of all have a branch in every fourth place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blis_jax.errors import ConfigError, closest
from sweeps.search.engines import Engine, Told, make
from sweeps.search.engines.ensemble import EngineParts, Ensemble
from sweeps.search.engines.modelled.encoding import Encoding
from sweeps.search.engines.modelled.known import BranchedStart
from sweeps.search.engines.sobol import Sobol
from sweeps.strategies.file import Search
from sweeps.strategies.space import Dimension, Point, Space

OWN = ("ensemble", "denoised", "turbo")  # know branches
MODELS = ("gp", "tpe", "forest")
PLAIN = ("random", "sobol")
ABLATIONS = {f"ensemble-no-{name}": EngineParts(**{name: False}) for name in EngineParts._fields}
# with rungs: most points on a few seeds, the best ones on more
RACED = {f"{name}-raced{more}": name for name in OWN for more in ("", "-expected")}
PLAIN_EXPECTED = {f"{name}-expected": name for name in OWN}
# with expected penalties
EXPECTED = {
    **PLAIN_EXPECTED,
    **{name: of for name, of in RACED.items() if name.endswith("-expected")},
}
SEARCHED = (*OWN, *PLAIN_EXPECTED, *RACED, *MODELS, *PLAIN, *ABLATIONS)
DEEP = ("denoised",)  # with more rungs, since they say themselves which point goes on
RECOMMENDED = "-recommended"  # the same searches, judged by the points that a model recommends
NAMES = (*SEARCHED, *(name + RECOMMENDED for name in SEARCHED))


def check(name: str) -> None:
    """Refuses the name of no engine."""
    if name not in NAMES:
        raise ConfigError(
            f"--engines: {name!r} is unknown; use some of {', '.join(SEARCHED)}, each with "
            f"{RECOMMENDED} behind it or not{closest(name, NAMES)}"
        )


def searched(name: str) -> str:
    """The engine whose searches are judged under a name."""
    return name.removesuffix(RECOMMENDED)


def is_led(name: str) -> bool:
    """Whether the engine says which point of a search with rungs goes on."""
    return RACED.get(searched(name)) in DEEP


def engine_of(space: Space, search: Search) -> Engine:
    """The engine that a search names, told of branches."""
    changed = {**EXPECTED, **RACED}.get(search.engine, search.engine)
    search = search.model_copy(update={"engine": changed})
    if search.engine in ABLATIONS:
        return Ensemble(space, search, ABLATIONS[search.engine])
    if search.engine in OWN:
        return make(space, search)
    if search.engine in PLAIN:
        return BranchedStart(Encoding(space), make(space, search))
    return WithSwitches(space, search)


class WithSwitches:
    """An engine for a space in which every branch is a parameter of its own, off or on."""

    def __init__(self, space: Space, search: Search) -> None:
        """For a space and the engine that `search` names."""
        self.search, self.encoding = search, Encoding(space)
        self.first = BranchedStart(self.encoding, Sobol(space, search))
        switches = tuple(
            Dimension(f"{space.names[column]} is {value!r}", "", "categorical", categories=(0, 1))
            for column, value in self.encoding.branches
        )
        self.engine = make(replace(space, dimensions=(*space.dimensions, *switches)), search)

    def ask(self, told: Sequence[Told], count: int) -> list[Point]:
        """The next points."""
        missing = self.search.initial - len(told)
        if missing > 0:
            return self.first.ask(told, min(count, missing))
        switched = [one._replace(point=self._switched(one.point)) for one in told]
        return [self._point(point) for point in self.engine.ask(switched, count)]

    def _switched(self, point: Point) -> Point:
        branches = self.encoding.branches
        return (*point, *(int(point[column] == value) for column, value in branches))

    def _point(self, switched: Point) -> Point:
        count = len(self.encoding.branches)
        point = switched[: len(switched) - count]
        for number, is_on in enumerate(switched[len(point) :]):
            if is_on:
                point = self.encoding.in_branch(point, number)
        return point
