"""An ablation as a document: combinations of components, contributions, interactions, and idle components."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from blis_jax.files.atomic_write import plain
from blis_jax.files.formats import number_of
from blis_jax.metrics.metric import names_in
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.words import cluster_line
from blis_jax.statistics.intervals import (
    NO_INTERVAL,
    Estimate,
    interval_of,
    seed_mean,
    student_interval,
)
from blis_jax.statistics.paired import Pair, differences, joint_words
from sweeps.compare.ablation import effects
from sweeps.compare.ablation.components import Component, on, values_of
from sweeps.compare.ablation.effects import FULL, SINGLE, Values
from sweeps.compare.ablation.inert import ACTIVE, INERT, UNKNOWN
from sweeps.compare.document import CommonSetting, setting_json
from sweeps.compare.judge import interval_sentence, metric_json
from sweeps.runs.measured import failure_of, metric_values, same_lives, versions
from sweeps.strategies.arms import Arm

OF_CLASS = ("ttft_p99_ms",)
OF_RUN = ("output_tokens_per_s",)
ADDED, LEFT_OUT, SHAPLEY, MAIN = "added alone", "left out", "Shapley", "main effect"


@dataclass(frozen=True)
class Combination:
    """One mixture of the two arms; `error` says why a mixture is no valid configuration, which then has no runs."""

    mask: int
    runs: tuple[RunSummary, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Ablation:
    """The inputs of an ablation: the base, its components, and the combinations that were run."""

    base: Arm
    arm: Arm
    components: tuple[Component, ...]
    design: str
    combinations: tuple[Combination, ...]

    def runs(self, mask: int) -> tuple[RunSummary, ...]:
        """Return the runs of one combination; none if the combination was not run or is no valid configuration."""
        return next(
            (combination.runs for combination in self.combinations if combination.mask == mask), ()
        )

    @property
    def is_full(self) -> bool:
        """Return whether every combination was run."""
        return len(self.combinations) == 2 ** len(self.components)


def default_metrics(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the default metrics: the P99 of TTFT of all requests and of each class, and throughput."""
    return (*OF_CLASS, *names_in(OF_CLASS, classes), *OF_RUN)


def to_document(setting: CommonSetting, ablation: Ablation) -> dict[str, Any]:
    """Return everything that the report, the figure and other programs need, as plain data."""
    values = {name: _values(setting, ablation, name) for name in setting.metrics}
    contributions = _contributions(setting, ablation, values)
    interactions = _interactions(setting, ablation, values)
    pairs = max((entry["num_pairs"] for entry in contributions), default=0)
    return plain(
        {
            "format": number_of("ablation"),
            "kind": "ablation",
            "versions": versions(),
            **setting_json(setting),
            "inference": {
                "confidence": setting.inference.confidence,
                "num_resamples": setting.inference.num_resamples,
                "random_state": setting.inference.random_state,
                "family": f"{len(contributions)} contributions: every kind, component, metric and "
                "class",
                "family_of_interactions": f"{len(interactions)} interactions: every pair of "
                "components, metric and class",
                "simultaneous_intervals": joint_words(setting.inference).partition("; ")[2],
                "intervals": interval_sentence(pairs, setting.inference, setting.run_word),
            },
            "cluster": cluster_line(
                {each_arm.name: each_arm.config for each_arm in (ablation.base, ablation.arm)}
            ),
            "base": ablation.base.name,
            "arm": ablation.arm.name,
            "design": FULL if ablation.is_full else ablation.design,
            "components": [
                _component(ablation, place) for place in range(len(ablation.components))
            ],
            "combinations": [
                _combination(setting, ablation, entry) for entry in ablation.combinations
            ],
            "total": _total(setting, ablation, values),
            "contributions": contributions,
            "interactions": interactions,
        }
    )


def _values(setting: CommonSetting, ablation: Ablation, name: str) -> Values:
    by_mask = {
        combination.mask: metric_values(combination.runs, name)
        for combination in ablation.combinations
        if combination.runs
    }
    return Values(len(ablation.components), len(setting.seeds), by_mask)


# --- what was run ---------------------------------------------------------------------------------


def _combination(
    setting: CommonSetting, ablation: Ablation, combination: Combination
) -> dict[str, Any]:
    failure = failure_of(setting.seeds, combination.runs) if combination.runs else None
    figures: dict[str, dict[str, Any]] = {}
    for name in setting.metrics if combination.runs else ():
        metric, slo_class = lookup(name)
        values = metric_values(combination.runs, name)
        interval = interval_of(seed_mean, [values[np.isfinite(values)]], setting.inference)
        entry = {**interval.to_json(), "unit": metric.unit, "per_seed": values.tolist()}
        figures.setdefault(slo_class or ALL, {})[metric.name] = entry
    return {
        "on": [component.name for component in on(ablation.components, combination.mask)],
        "error": combination.error,
        "outcomes": [run.outcome.name for run in combination.runs],
        "failure": failure.to_json() if failure is not None else None,
        "num_broken_invariants": sum(run.num_broken_invariants for run in combination.runs),
        "figures": figures,
    }


def _component(ablation: Ablation, place: int) -> dict[str, Any]:
    component = ablation.components[place]
    before = values_of(ablation.base.config, component.settings)
    after = values_of(ablation.arm.config, component.settings)
    same, other = _contexts(ablation, place)
    status = UNKNOWN if not same and not other else ACTIVE if other else INERT
    return {
        "name": component.name,
        "settings": {name: [before[name], after[name]] for name in component.settings},
        "status": status,
        "num_contexts": len(same) + len(other),
        "num_contexts_inert": len(same),
        "needs": _needed(ablation, same, other) if status == ACTIVE else [],
    }


def _contexts(ablation: Ablation, place: int) -> tuple[list[int], list[int]]:
    """Return the combinations of other components where adding one changes no request's life, and those where it
    does."""
    same, other = [], []
    for combination in ablation.combinations:
        if combination.mask >> place & 1:
            continue
        without, with_it = combination.runs, ablation.runs(combination.mask | 1 << place)
        if not without or not with_it:
            continue
        if same_lives(without, with_it):
            same.append(combination.mask)
        elif any(a.fingerprint != b.fingerprint for a, b in zip(without, with_it, strict=True)):
            other.append(combination.mask)
    return same, other


def _needed(ablation: Ablation, same: Sequence[int], other: Sequence[int]) -> list[str]:
    """Return the components that are missing where one component does nothing, and present where that one acts."""
    needed = []
    for place, component in enumerate(ablation.components):
        without = [mask for mask in same if not mask >> place & 1]
        if without and all(mask >> place & 1 for mask in other):
            needed.append(component.name)
    return needed


# --- contributions --------------------------------------------------------------------------------


def _total(
    setting: CommonSetting, ablation: Ablation, values: Mapping[str, Values]
) -> list[dict[str, Any]]:
    """Return the total change from the base to the arm, by metric."""
    everything = 2 ** len(ablation.components) - 1
    pairs = [
        Pair(values[name][0], values[name][everything], lookup(name)[0].direction)
        for name in setting.metrics
    ]
    totals = differences(pairs, setting.inference)
    return [
        {**metric_json(name), **difference.to_json()}
        for name, difference in zip(setting.metrics, totals, strict=True)
    ]


def _kinds(is_full: bool) -> dict[str, Callable[[Values, int], tuple[np.ndarray, np.ndarray]]]:
    """Return by kind of contribution the function that returns two series, whose difference is the contribution; for
    averages, the base and the base plus the average."""
    kinds: dict[str, Callable[[Values, int], tuple[np.ndarray, np.ndarray]]] = {
        ADDED: effects.alone,
        LEFT_OUT: effects.left_out,
    }
    if is_full:
        kinds[SHAPLEY] = lambda of, place: (of[0], of[0] + effects.shapley(of, place))
        kinds[MAIN] = lambda of, place: (of[0], of[0] + effects.main_effect(of, place))
    return kinds


def _contributions(
    setting: CommonSetting, ablation: Ablation, values: Mapping[str, Values]
) -> list[dict[str, Any]]:
    kinds = _kinds(ablation.is_full)
    columns = [
        (name, kind, place)
        for name in setting.metrics
        for kind in kinds
        for place in range(len(ablation.components))
    ]
    pairs = [
        Pair(*kinds[kind](values[name], place), lookup(name)[0].direction)
        for name, kind, place in columns
    ]
    return [
        {
            "component": ablation.components[place].name,
            "kind": kind,
            **metric_json(name),
            **difference.to_json(),
        }
        for (name, kind, place), difference in zip(
            columns, differences(pairs, setting.inference), strict=True
        )
    ]


# --- interactions ---------------------------------------------------------------------------------


def _interactions(
    setting: CommonSetting, ablation: Ablation, values: Mapping[str, Values]
) -> list[dict[str, Any]]:
    """Return for every two components their joint effect, beside the sum of their single effects."""
    if ablation.design == SINGLE and not ablation.is_full:
        return []
    places = [
        (name, first, second)
        for name in setting.metrics
        for first, second in combinations(range(len(ablation.components)), 2)
    ]
    directions = [lookup(name)[0].direction for name, _, _ in places]
    on_base = [
        Pair(*effects.joint(values[name], first, second), direction)
        for (name, first, second), direction in zip(places, directions, strict=True)
    ]
    on_base_differences = differences(on_base, setting.inference)
    averaged = list(_averaged(setting, ablation, values, places))
    return [
        {
            "components": [ablation.components[place].name for place in (first, second)],
            **metric_json(name),
            **on_base.to_json(),
            **more,
            "ratio": _ratio(setting, values[name], first, second),
        }
        for (name, first, second), on_base, more in zip(
            places, on_base_differences, averaged, strict=True
        )
    ]


def _averaged(
    setting: CommonSetting,
    ablation: Ablation,
    values: Mapping[str, Values],
    wanted: Sequence[tuple[str, int, int]],
) -> Iterator[dict[str, Any]]:
    """Yield each interaction averaged over all combinations of the other components."""
    for name, first, second in wanted:
        if not ablation.is_full:
            yield {}
            continue
        added, both = effects.joint_anywhere(values[name], first, second)
        change = both - added
        interval = interval_of(seed_mean, [change[np.isfinite(change)]], setting.inference)
        yield {"averaged": interval.to_json()}


def _ratio(setting: CommonSetting, values: Values, first: int, second: int) -> dict[str, Any]:
    """Return the ratio of (both ÷ base) to the product (first ÷ base) × (second ÷ base), of means over the seeds."""
    cells = [values[mask] for mask in (0, 1 << first, 1 << second, 1 << first | 1 << second)]
    known = np.isfinite(cells).all(axis=0)
    cells = [cell[known] for cell in cells]
    nothing = Estimate(math.nan, math.nan, math.nan, 0, NO_INTERVAL)
    if not known.any() or any(cell.mean() <= 0 for cell in cells):
        return {"together": None, "expected": None, "interaction": nothing.to_json()}
    base, first_alone, second_alone, both = (float(cell.mean()) for cell in cells)
    logs = student_interval(effects.log_ratio, cells, setting.inference.confidence)
    return {
        "together": both / base,
        "expected": first_alone / base * second_alone / base,
        "interaction": logs.through(math.exp).to_json(),
    }
