"""A strategy's search space: its parameters with types and ranges, and points as configurations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import FIELDS, ClusterConfig, nearest_setting
from blis_jax.cluster.named_policies import located, number_of
from blis_jax.cluster.revisions import seen_as, served
from blis_jax.cluster.router import parse_scorers, short_name, weights_of, with_weights
from blis_jax.errors import ConfigError, closest
from blis_jax.lazy import stats
from blis_jax.policies.numbers import Number
from blis_jax.policies.their_names import ours
from sweeps.strategies.file import Strategy, converted
from sweeps.strategies.moved import is_setting, of_arguments, replaced, today
from sweeps.strategies.parts import Parameter

if TYPE_CHECKING:
    from jaxtyping import Float

Point = tuple[Any, ...]  # one value per dimension
SCORERS = "routing_scorers"
_TYPES = {"int": "integer", "float": "real", "str": "categorical", "bool": "categorical"}


@dataclass(frozen=True)
class Dimension:
    """One parameter: `low` to `high`, or one of `categories`."""

    name: str
    target: str  # a setting, or routing_scorers.NAME
    kind: str  # real, integer or categorical
    low: float = 0.0
    high: float = 0.0
    is_log: bool = False
    categories: tuple[Any, ...] = ()
    decimals: int | None = None

    @property
    def scorer(self) -> str:
        """Return the scorer whose weight this parameter sets; empty for a setting."""
        setting, _, scorer = self.target.partition(".")
        return scorer if setting == SCORERS else ""

    def at(self, share: float) -> Any:
        """Return the value at a share, 0 to 1, of the range; each category has an equal part of the range."""
        if self.kind == "categorical":
            return self.categories[min(int(share * len(self.categories)), len(self.categories) - 1)]
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + share * (high - low))
        elif self.kind == "integer":
            return min(int(self.low + share * (self.high - self.low + 1)), self.high)
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(value, self.low), self.high)
        return round(value) if self.kind == "integer" else value

    def share(self, value: Any) -> float:
        """Return a value's share of the range; for whole numbers and choices the middle of the value's part."""
        if self.kind == "categorical":
            names = [repr(category) for category in self.categories]
            return (names.index(repr(value)) + 0.5) / len(names)
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(value) - low) / (high - low)
        if self.kind == "integer":
            return (value - self.low + 0.5) / (self.high - self.low + 1)
        return (value - self.low) / (self.high - self.low)

    def simulated(self, value: Any) -> Any:
        """Return the value that the simulator receives, rounded if the strategy's files fix the decimals."""
        return round(value, self.decimals) if self.decimals is not None else value


def sobol_shares(
    num_columns: int, count: int, random_state: int | Sequence[int]
) -> Float[np.ndarray, "point column"]:
    """Return the first `count` points of a scrambled Sobol sequence in the unit cube; longer ones begin with these."""
    sequence = stats.qmc.Sobol(num_columns, rng=np.random.default_rng(random_state))
    points: Float[np.ndarray, "point column"] = sequence.random_base2((count - 1).bit_length())
    return points[:count]


@dataclass(frozen=True)
class Space:
    """A strategy's dimensions and the configuration that they change."""

    strategy: Strategy
    base: ClusterConfig
    dimensions: tuple[Dimension, ...]
    num_requests: int | None = None  # that replaces the workload's; from the reference's arguments
    signals: str | None = None  # what the router sees, by its name; None: what the strategy says

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters, in order."""
        return tuple(dimension.name for dimension in self.dimensions)

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the names of the settings that parameters and overrides change."""
        targets = [dimension.target.partition(".")[0] for dimension in self.dimensions]
        overrides = (name for override in self.strategy.overrides for name in override.settings)
        return (*targets, *map(today, overrides))

    @property
    def fixed_weights(self) -> float:
        """Return the summed weights of scorers that no parameter changes."""
        searched = {dimension.scorer for dimension in self.dimensions}
        scorers = parse_scorers(_scorers_of(self.base))
        return sum(weight for name, weight in scorers if short_name(name) not in searched)

    def served(self, is_real: bool, signals: str | None = None) -> Space:
        """Return the space with its cluster as real servers would run it (see `served`), and under named signals."""
        return replace(self, base=served(self.base, is_real), signals=signals)

    def at(self, shares: Iterable[float]) -> Point:
        """Return the point at a share, 0 to 1, of every range."""
        pairs = zip(self.dimensions, shares, strict=True)
        return tuple(dimension.at(float(share)) for dimension, share in pairs)

    def config_at(self, point: Point) -> ClusterConfig:
        """Return the configuration of a point."""
        return self.config_with(dict(zip(self.names, point, strict=True)))

    def config_with(self, values: Mapping[str, Any]) -> ClusterConfig:
        """Return the configuration with some parameters set; the others keep the base's values."""
        changes: dict[str, Any] = {}
        weights: dict[str, float] = {}
        for dimension in self.dimensions:
            if dimension.name not in values:
                continue
            value = dimension.simulated(values[dimension.name])
            if dimension.scorer:
                weights[dimension.scorer] = value
            else:
                changes[dimension.target] = value
        for override in self.strategy.overrides:
            if all(values.get(name) == value for name, value in override.when.items()):
                changes |= override.settings
        if weights:
            scorers = parse_scorers(changes.get(SCORERS) or _scorers_of(self.base))
            changes[SCORERS] = with_weights(scorers, weights)
        return seen_as(replaced(self.base, changes), self.signals)


def space_of(strategy: Strategy) -> Space:
    """Return the search space of a strategy, checked."""
    base, num_requests = _base_config(strategy)
    dimensions = tuple(
        _dimension(strategy, base, place, parameter)
        for place, parameter in enumerate(strategy.parameters)
    )
    space = Space(strategy, base, dimensions, num_requests)
    _check_distinct(strategy, dimensions)
    _check_overrides(strategy, space.names)
    _check_points(strategy, space)
    _check_corners(strategy, space)
    _check_required(strategy, space)
    return space


# --- the mechanism --------------------------------------------------------------------------------


def _base_config(strategy: Strategy) -> tuple[ClusterConfig, int | None]:
    if strategy.fixed_args:
        try:
            return of_arguments(strategy.fixed_args)
        except ConfigError as error:
            raise strategy.refuse("fixed_args", str(error)) from None
    values = {}
    for key, value in strategy.mechanism.items():
        if not is_setting(key):
            raise strategy.refuse(
                f"mechanism.{key}",
                f"the setting is unknown; settings are named as BLIS's flags, with underscores"
                f"{nearest_setting(key)}",
            )
        values[key] = converted(key, value)
    try:
        values = located(ours(values), strategy.folder)
        return replaced(ClusterConfig(), values), None
    except ConfigError as error:
        raise strategy.refuse("mechanism", str(error)) from None


def _scorers_of(config: ClusterConfig) -> str:
    return with_weights(config.scorers(), {})


# --- the parameters -------------------------------------------------------------------------------


def _dimension(
    strategy: Strategy, base: ClusterConfig, place: int, parameter: Parameter
) -> Dimension:
    path = strategy.parameter_paths[place]
    target = _target(strategy, base, path, parameter)
    declared = _declared(strategy, base, path, target)
    usual = _TYPES.get("float" if "." in target else str(FIELDS[target].type))
    if declared is not None and declared.is_whole:
        usual = "integer"
    kind = parameter.type or ("categorical" if parameter.categories is not None else usual)
    if kind is None:
        raise strategy.refuse(f"{path}.target", f"{target} is a list, which no search can vary")
    if kind == "categorical":
        return _categorical(strategy, path, parameter, target)
    if usual == "integer" and kind == "real":
        raise strategy.refuse(f"{path}.type", f"got 'real', but {target} is whole; use 'integer'")
    if usual == "categorical":
        raise strategy.refuse(
            f"{path}.type", f"got {kind!r}, but {target} is a choice; use 'categorical'"
        )
    if parameter.low is None and parameter.high is None and declared is not None:
        parameter = _as_declared(parameter, declared)
    low, high = _range(strategy, path, parameter, kind)
    is_log = parameter.prior == "log-uniform"
    if is_log and low <= 0:
        raise strategy.refuse(
            f"{path}.low", f"got {low:g}, allowed is a number above 0 with prior 'log-uniform'"
        )
    decimals = parameter.decimals if kind == "real" else None
    return Dimension(parameter.name, target, kind, low, high, is_log, decimals=decimals)


def _declared(strategy: Strategy, base: ClusterConfig, path: str, target: str) -> Number | None:
    """Return the policy's declaration of the number that a parameter sets; None if it sets something else."""
    try:
        return number_of(base, target)
    except ConfigError as error:
        raise strategy.refuse(f"{path}.target", str(error)) from None


def _as_declared(parameter: Parameter, declared: Number) -> Parameter:
    """Return the parameter with the bounds and the prior that the policy declares, if it declares any."""
    if declared.searched is None:
        return parameter
    low, high = declared.searched
    changes: dict[str, Any] = {"low": low, "high": high}
    if "prior" not in parameter.model_fields_set:
        changes["prior"] = declared.prior
    return parameter.model_copy(update=changes)


def _target(strategy: Strategy, base: ClusterConfig, path: str, parameter: Parameter) -> str:
    if (parameter.target is None) == (parameter.flag is None):
        raise strategy.refuse(path, "give either target or flag, the setting that it changes")
    if parameter.flag is not None:
        target, key = parameter.flag[2:].replace("-", "_"), "flag"
    else:
        target, key = str(parameter.target), "target"
    target = today(target)
    setting, dot, scorer = target.partition(".")
    if dot and setting == SCORERS:
        names = list(weights_of(base.scorers()))
        if scorer not in names:
            has = ", ".join(names) or "none, since routing_policy is not weighted"
            raise strategy.refuse(
                f"{path}.{key}", f"{scorer!r} is no scorer of the mechanism, which has {has}"
            )
    elif not is_setting(target):
        name = parameter.flag or target
        raise strategy.refuse(
            f"{path}.{key}",
            f"{name!r} is no setting that can be searched{nearest_setting(target)}",
        )
    return target


def _categorical(strategy: Strategy, path: str, parameter: Parameter, target: str) -> Dimension:
    categories = parameter.categories
    if not categories or parameter.low is not None or parameter.high is not None:
        raise strategy.refuse(
            f"{path}.categories",
            "a categorical parameter needs a list of values, and no low or high",
        )
    if len(set(map(repr, categories))) != len(categories):
        raise strategy.refuse(f"{path}.categories", "a value is given twice; keep one of them")
    return Dimension(parameter.name, target, "categorical", categories=categories)


def _range(strategy: Strategy, path: str, parameter: Parameter, kind: str) -> tuple[float, float]:
    if parameter.categories is not None:
        raise strategy.refuse(f"{path}.categories", f"a parameter of type {kind} has low and high")
    for key in ("low", "high"):
        value = getattr(parameter, key)
        if value is None:
            raise strategy.refuse(f"{path}.{key}", "missing, but it must be given")
        if kind == "integer" and value != int(value):
            raise strategy.refuse(f"{path}.{key}", f"got {value:g}, allowed is a whole number")
    low, high = parameter.low, parameter.high
    assert low is not None and high is not None
    if low >= high:
        raise strategy.refuse(
            f"{path}.low", f"got {low:g}, allowed is a number below high, which is {high:g}"
        )
    return (int(low), int(high)) if kind == "integer" else (low, high)


# --- checks ---------------------------------------------------------------------------------------


def _check_distinct(strategy: Strategy, dimensions: Sequence[Dimension]) -> None:
    for field in ("name", "target"):
        seen: dict[str, int] = {}
        for place, dimension in enumerate(dimensions):
            value = getattr(dimension, field)
            if value in seen:
                raise strategy.refuse(
                    f"{strategy.parameter_paths[place]}.{field}",
                    f"{value!r} is that of {strategy.parameter_paths[seen[value]]} too; "
                    "keep one of them",
                )
            seen[value] = place


def _check_overrides(strategy: Strategy, names: Sequence[str]) -> None:
    for place, override in enumerate(strategy.overrides):
        path = f"overrides[{place}]"
        for name in override.when:
            if name not in names:
                raise strategy.refuse(
                    f"{path}.when.{name}", f"there is no such parameter{closest(name, names)}"
                )
        for name in override.settings:
            if not is_setting(name):
                raise strategy.refuse(
                    f"{path}.settings.{name}", f"the setting is unknown{nearest_setting(name)}"
                )


def _check_points(strategy: Strategy, space: Space) -> None:
    for name, values in strategy.points.items():
        for parameter in values:
            if parameter not in space.names:
                raise strategy.refuse(
                    f"points.{name}.{parameter}",
                    f"there is no such parameter{closest(parameter, space.names)}",
                )
        try:
            space.config_with(values)
        except (ConfigError, TypeError) as error:
            raise strategy.refuse(f"points.{name}", str(error)) from None


def _check_corners(strategy: Strategy, space: Space) -> None:
    """Refuse an end of a range, or a category, that alone makes an invalid configuration."""
    middle = [dimension.at(0.5) for dimension in space.dimensions]
    for place, dimension in enumerate(space.dimensions):
        ends: dict[str, Any] = {"low": dimension.low, "high": dimension.high}
        if dimension.kind == "categorical":
            ends = {f"categories[{i}]": value for i, value in enumerate(dimension.categories)}
        for key, value in ends.items():
            try:
                space.config_at((*middle[:place], value, *middle[place + 1 :]))
            except ConfigError as error:
                path = f"{strategy.parameter_paths[place]}.{key}"
                raise strategy.refuse(path, str(error)) from None


def _check_required(strategy: Strategy, space: Space) -> None:
    for name, bounds in strategy.required_settings.items():
        if not is_setting(name):
            raise strategy.refuse(
                f"required_settings.{name}", f"the setting is unknown{nearest_setting(name)}"
            )
        for value in _reached(space, name):
            if (problem := bounds.broken(value)) is not None:
                words = f"the strategy requires {problem}, but the mechanism or a parameter has {value!r}"
                raise strategy.refuse(f"required_settings.{name}", words)


def _reached(space: Space, name: str) -> list[Any]:
    """Return the possible values of a setting: the ends of its range, its categories, or its fixed value."""
    for dimension in space.dimensions:
        if dimension.target == name:
            return list(dimension.categories or (dimension.low, dimension.high))
    return [space.base.value(today(name))]
