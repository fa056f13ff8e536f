"""The designs of a sensitivity study, and the models to evaluate: simulator on common seeds, or surrogate's mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from SALib.sample import morris as method
from SALib.sample import sobol

from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.files.journal import Journal
from blis_jax.metrics.run_summary import RunSummary
from sweeps.search.objectives import Valuation
from sweeps.strategies.space import Dimension, Point, Space, sobol_shares

if TYPE_CHECKING:
    from sweeps.runs.experiment import Experiment


# --- designs in the unit cube, a share of every parameter's range each ----------------------------


MORRIS_LEVELS = 4
STEP = 0.1  # of a range, for finite differences: smaller ones see single requests change places


@dataclass(frozen=True)
class Sizes:
    """The sizes of the designs; Saltelli's, with `base` × (2 parameters + 2) points, is the largest."""

    base: int = 128  # rows of the Saltelli design
    trajectories: int = 20  # of Morris
    gradients: int = 64  # points that derivatives are taken at
    levels: int = 9  # of a parameter in its one-dimensional effect
    bases: int = 16  # points that an effect is averaged over
    pairs: int = 3  # two-dimensional effects
    pair_levels: int = 7
    pair_bases: int = 8
    random_state: int = 0

    def check(self) -> None:
        """Refuse sizes too small for an index or an interval."""
        if self.base < 16 or self.base & (self.base - 1) or self.base > 65_536:
            raise ConfigError(
                f"--base: got {self.base}, allowed is a power of two from 16 to 65536, since only "
                "then the Sobol sequence is balanced"
            )
        limits = {
            "trajectories": (4, 10_000),
            "gradients": (4, 65_536),
            "levels": (3, 101),
            "bases": (4, 4096),
            "pairs": (0, 20),
            "random_state": (0, 2**31),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag}: got {value}, allowed is {low} to {high}")

    def num_points(self, num_parameters: int, num_regions: int = 0) -> int:
        """Return the most points of a study; choices and whole numbers with few values need fewer."""
        pairs = min(self.pairs, num_parameters * (num_parameters - 1) // 2)
        return (
            self.base * (2 * num_parameters + 2 + num_regions * (num_parameters + 2))
            + (self.trajectories + self.gradients) * (num_parameters + 1)
            + num_parameters * self.levels * self.bases
            + pairs * self.pair_levels**2 * self.pair_bases
        )


def problem(names: Sequence[str]) -> dict[str, Any]:
    """Return the unit cube over these parameters, as SALib describes a problem."""
    return {"num_vars": len(names), "names": list(names), "bounds": [[0.0, 1.0]] * len(names)}


def saltelli(names: Sequence[str], sizes: Sizes, has_pairs: bool = True) -> np.ndarray:
    """Return Saltelli's design for first-order and total indices, and for second-order indices if it `has_pairs`.

    `[base × (2 parameters + 2), parameter]`, without pairs `[base × (parameters + 2), parameter]`
    """
    made: np.ndarray = sobol.sample(
        problem(names), sizes.base, calc_second_order=has_pairs, seed=sizes.random_state
    )
    return made


def morris(names: Sequence[str], sizes: Sizes) -> np.ndarray:
    """Return Morris's trajectories, `[trajectories × (parameters + 1), parameter]`."""
    made: np.ndarray = method.sample(
        problem(names), sizes.trajectories, num_levels=MORRIS_LEVELS, seed=sizes.random_state
    )
    return made


def differences(names: Sequence[str], sizes: Sizes) -> np.ndarray:
    """Return points, each followed by points with one step inward, one for each parameter.

    `[gradients × (parameters + 1), parameter]`
    """
    starts = sobol_shares(len(names), sizes.gradients, sizes.random_state + 1)
    blocks = np.repeat(starts[:, None, :], len(names) + 1, axis=1)
    step = np.where(starts + STEP <= 1, STEP, -STEP)
    for place in range(len(names)):
        blocks[:, place + 1, place] += step[:, place]
    return blocks.reshape(-1, len(names))


def levels_of(dimension: Dimension, count: int) -> np.ndarray:
    """Return the shares of a range at which an effect is measured, both ends included; at most `count` of a number."""
    if dimension.kind == "categorical":
        num_values = len(dimension.categories)
        return (np.arange(num_values) + 0.5) / num_values
    shares = np.linspace(0.0, 1.0, count)
    if dimension.kind == "integer":
        values = [dimension.at(float(share)) for share in shares]
        kept = [place for place, value in enumerate(values) if value not in values[:place]]
        shares = shares[kept]
    return shares


def along(starts: np.ndarray, place: int, levels: np.ndarray) -> np.ndarray:
    """Return every start at every level of one parameter, `[start × level, parameter]`."""
    points = np.repeat(starts[:, None, :], len(levels), axis=1)
    points[:, :, place] = levels
    return points.reshape(-1, starts.shape[1])


def across(
    starts: np.ndarray, places: tuple[int, int], levels: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return every start at every pair of levels of two parameters, `[start × level × level, parameter]`."""
    shape = len(starts), len(levels[0]), len(levels[1]), starts.shape[1]
    points = np.broadcast_to(starts[:, None, None, :], shape).copy()
    points[..., places[0]] = levels[0][:, None]
    points[..., places[1]] = levels[1]
    return points.reshape(-1, starts.shape[1])


# --- what is measured -----------------------------------------------------------------------------


SIMULATOR, SURROGATE = "simulator", "surrogate"
POINTS_PER_PART = 32


class MeanPredictor(Protocol):
    """The interface of a surrogate that predicts means over seeds; `surrogate.predict.Surrogate` is one."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the inputs, which are the strategy's parameters."""

    @property
    def bounds(self) -> Sequence[tuple[float, float]]:
        """Return the lowest and the highest value of each input among the points of the surrogate's fit."""

    @property
    def outputs(self) -> Sequence[str]:
        """Return the metrics that the surrogate predicts."""

    def predict_mean(self, points: np.ndarray) -> Mapping[str, np.ndarray]:
        """Return by metric the mean over seeds `[point]` at points `[point, input]` in their own units."""


class Response(Protocol):
    """The interface of a model: metrics as a function of the unit cube."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the metrics of the response."""

    def evaluate(self, shares: np.ndarray) -> np.ndarray:
        """Return values `[point, seed, metric]` at shares `[point, parameter]`; NaN where a run failed."""


def batches_of(
    space: Space, designs: Iterable[np.ndarray], known: Collection[Point] = ()
) -> list[list[Point]]:
    """Return the points of designs in batches, as they are run, without those in `known`."""
    batches, seen = [], set(known)
    for shares in designs:
        points = dict.fromkeys(space.at(row) for row in shares)
        missing = [point for point in points if point not in seen]
        seen.update(missing)
        batches += [
            missing[at : at + POINTS_PER_PART] for at in range(0, len(missing), POINTS_PER_PART)
        ]
    return batches


# a point, its outcomes, values [seed][metric]
Entry = tuple[list[Any], list[str], list[list[float]]]


def entries_of(space: Space, experiment: Experiment, points: Sequence[Point]) -> list[Entry]:
    """Run points on every seed, and return each point's journal entry."""
    batch = experiment.run([space.config_at(point) for point in points])
    return [
        (
            list(point),
            [run.outcome.name for run in runs],
            [[run.value(name) for name in experiment.names] for run in runs],
        )
        for point, runs in zip(points, batch, strict=True)
    ]


class Simulated:
    """The simulator; points that were run before, or are in the journal, are not run again."""

    def __init__(
        self,
        space: Space,
        experiment: Experiment,
        journal: Journal | None = None,
        on_part: Callable[[int], None] | None = None,
    ) -> None:
        """Take the space and the experiment; `on_part` receives the number of points run so far."""
        self.space, self.experiment = space, experiment
        self.journal, self.on_part = journal, on_part
        self.kept: dict[Point, np.ndarray] = {}  # [seed, metric]
        self.outcomes: dict[Point, tuple[str, ...]] = {}
        if journal is not None:
            for line in journal.lines():
                for point, outcomes, values in line:
                    self._keep(tuple(point), outcomes, values)
            journal.begin()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the metrics of the experiment."""
        return self.experiment.names

    def evaluate(self, shares: np.ndarray) -> np.ndarray:
        """Return simulated values `[point, seed, metric]` at shares of the parameters' ranges."""
        for batch in batches_of(self.space, [shares], self.kept):
            self._run(batch)
        return np.array([self.kept[self.space.at(row)] for row in shares])

    def failures(self) -> dict[str, int]:
        """Return the number of runs that did not finish, by outcome."""
        failed = [
            outcome
            for point, values in self.kept.items()
            for outcome, row in zip(self.outcomes[point], values, strict=True)
            if np.isnan(row).all()
        ]
        return {name: failed.count(name) for name in sorted(set(failed))}

    def _run(self, points: Sequence[Point]) -> None:
        """Run points on every seed and write them to the journal."""
        entries = entries_of(self.space, self.experiment, points)
        if self.journal is not None:
            self.journal.append(entries)
        for point, outcomes, values in entries:
            self._keep(tuple(point), outcomes, values)
        if self.on_part is not None:
            self.on_part(len(self.kept))

    def _keep(
        self, point: Point, outcomes: Sequence[str], values: Sequence[Sequence[float]]
    ) -> None:
        self.kept[point] = np.array(values, float)
        self.outcomes[point] = tuple(outcomes)


class Predicted:
    """A surrogate in place of the simulator; its members take the place of seeds.

    So the dummy's index measures here the surrogate's own error, as far as its members disagree. A surrogate without
    members has one value per point.
    """

    def __init__(self, space: Space, surrogate: MeanPredictor, names: Sequence[str]) -> None:
        """Take the metrics asked for as `names`; refuse a surrogate of another space."""
        self.space, self.surrogate = space, surrogate
        self.names = tuple(names)
        # a surrogate of our own holds a choice as the place of its value
        self.columns = {column.name: column for column in getattr(surrogate, "columns", ())}
        self.order = _order(space, surrogate, self.columns)
        if not set(self.names) & set(surrogate.outputs):
            raise ConfigError(
                f"--surrogate: it predicts none of the metrics asked for, but "
                f"{', '.join(surrogate.outputs)}; name some of these in --metrics"
            )

    def evaluate(self, shares: np.ndarray) -> np.ndarray:
        """Return predicted values `[point, member, metric]`; NaN for metrics that the surrogate lacks."""
        points = np.array([self._numbers(self.space.at(row)) for row in shares])[:, self.order]
        members = getattr(self.surrogate, "predict_members", None)
        predicted = self.surrogate.predict_mean(points) if members is None else members(points)
        known = {name: np.reshape(values, (len(points), -1)) for name, values in predicted.items()}
        nothing = np.full_like(next(iter(known.values())), np.nan)
        columns = [known.get(name, nothing) for name in self.names]
        return np.stack(columns, axis=-1).astype(float)

    def _numbers(self, point: Point) -> list[float]:
        """Return a point's values as the simulator would receive them, with choices as the surrogate's codes."""
        numbers = []
        for dimension, value in zip(self.space.dimensions, point, strict=True):
            column, simulated = self.columns.get(dimension.name), dimension.simulated(value)
            numbers.append(float(simulated) if column is None else column.code(simulated))
        return numbers


def _order(space: Space, surrogate: MeanPredictor, columns: Mapping[str, Any]) -> list[int]:
    """Return the indices of the surrogate's inputs among the parameters; refuse parameters' ranges beyond its own."""
    inputs = list(surrogate.names)
    if sorted(inputs) != sorted(space.names):
        raise ConfigError(
            f"--surrogate: its inputs are {', '.join(inputs)}, but the strategy's parameters are "
            f"{', '.join(space.names)}; give a surrogate that was fitted on this strategy"
        )
    for name, (low, high) in zip(inputs, surrogate.bounds, strict=True):
        dimension = space.dimensions[space.names.index(name)]
        if name in columns and dimension.categories:
            for value in dimension.categories:
                columns[name].code(value)  # refuses one that it does not know
            continue
        ends = dimension.categories or (dimension.low, dimension.high)
        if any(isinstance(value, str) for value in ends):
            raise ConfigError(
                f"--surrogate: parameter {name} is a choice of words, which a surrogate cannot take"
            )
        slack = 1e-9 * max(abs(low), abs(high))
        if min(ends) < low - slack or max(ends) > high + slack:
            raise ConfigError(
                f"--surrogate: it was fitted on {name} from {low:g} to {high:g}, but the strategy "
                f"goes from {min(ends):g} to {max(ends):g}; give a surrogate fitted on all of it"
            )
    return [space.names.index(name) for name in inputs]


def scores(names: Sequence[str], values: np.ndarray, valuation: Valuation) -> np.ndarray:
    """Return the strategy's score `[point]` of values `[point, seed, metric]`; NaN for failed points."""
    all_scores = []
    for of_point in values:
        runs = [
            RunSummary(Outcome.COMPLETED, dict(zip(names, row, strict=True)))
            for row in of_point.tolist()
        ]
        worth = valuation.worth(runs)
        all_scores.append(np.nan if worth.failures else worth.score)
    return np.array(all_scores)


def load_surrogate(path: str) -> MeanPredictor:
    """Return the surrogate saved in a folder.

    Raises:
        ConfigError: the folder does not exist, or the packages for surrogates are not
            installed.
    """
    try:
        module = import_module("surrogate.predictor")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--surrogate: this installation cannot load surrogates ({error.name} is missing); "
            "install blis-jax[surrogate], or leave the option out"
        ) from None
    if not Path(path).exists():
        raise ConfigError(f"--surrogate: {path} does not exist; give the folder of a surrogate")
    surrogate: MeanPredictor = module.Surrogate.load(path)
    return surrogate
