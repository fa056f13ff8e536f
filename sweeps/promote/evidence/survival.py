"""Does the gain survive? The strategy against the baseline with each concern of a real cluster, over common seeds.

Every row has the same seeds and requests, so a row is compared with the row without any concern seed by seed. The
verdicts of all rows on the main metric are adjusted together (Holm).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing, write_json
from blis_jax.results.metrics.scalars import LOWER, lookup
from blis_jax.statistics.intervals import BY_STUDENT, Estimate, estimate, relative_change
from blis_jax.statistics.paired import BETTER, SAME, WORSE, Difference, Pair, differences
from sweeps.promote.evidence.concerns import Concern, concerns

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.workload.spec import WorkloadSpec
    from sweeps.promote.promotion import Promotion
    from sweeps.runs.bench import Bench

    Values = Float[np.ndarray, "seed"]

STREAM = "reference"
NOTHING = "none"
SURVIVES, SMALLER, LARGER, UNCLEAR, REVERSED, NO_EFFECT = (
    "survives", "survives, smaller", "survives, larger", "not shown", "reversed", "no effect",
)  # fmt: skip


@dataclass(frozen=True)
class SurvivalRow:
    """One concern; without changes where it is not simulated."""

    name: str
    title: str
    about: str
    verdict: str  # of the words above, or why there is none
    changes: Mapping[str, Estimate]  # %, by metric
    against_none: (
        Estimate | None
    )  # %, of the ratio to the baseline, against that without any concern


@dataclass(frozen=True)
class Survival:
    """The table."""

    strategy: str
    baseline: str
    workload: str
    main: str  # metric
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[SurvivalRow, ...]

    def plain(self) -> dict[str, Any]:
        """As data, with None for what is not a number."""
        found: dict[str, Any] = _plain(asdict(self))
        return found


def survival_of(
    promotion: Promotion, seeds: Sequence[int], num_requests: int | None = None
) -> Survival:
    """Runs baseline and strategy with every concern that the engine can have.

    Raises:
        ConfigError: the strategy's file has no workload that is drawn.
    """
    from sweeps.promote.evidence.scenes import workload_of_promotion

    spec, workload = workload_of_promotion(promotion, num_requests)
    names = metrics_of(promotion, spec)
    benches: dict[str, Bench] = {}
    arms = (promotion.baseline.config, promotion.arm.config)
    pairs: dict[str, dict[str, tuple[Values, Values]]] = {}
    refused: dict[str, str] = {}
    every = (
        Concern(NOTHING, "", "As simulated", "no concern", lambda config, _: config),
        *concerns(),
    )
    for concern in every:
        if not concern.is_simulated:
            continue
        try:
            changed = [concern.applied(config, spec) for config in arms]
        except ConfigError as error:
            refused[concern.name] = str(error)
            continue
        bench = _bench(benches, changed[0][1], seeds, names)
        pairs[concern.name] = _values(bench, [config for config, _ in changed], names)
    rows = _rows(every, pairs, refused, names)
    return Survival(
        promotion.given, promotion.baseline.name, workload, names[0], names, tuple(seeds), rows
    )


def metrics_of(promotion: Promotion, spec: WorkloadSpec) -> tuple[str, ...]:
    """What the strategy is about first, then its constraints and criteria, then the tails of all classes."""
    strategy = promotion.arm.strategy
    names: list[str] = []
    if strategy is not None:
        names = [one.metric for one in strategy.objectives]
        names += [one.metric for one in strategy.constraints]
        names += [one.metric for one in strategy.success_criteria]
    names += [f"ttft_p99_ms[{slo_class}]" for slo_class in spec.slo_classes]
    if len(spec.slo_classes) == 1:
        names = [
            name.partition("[")[0] if name.endswith(f"[{spec.slo_classes[0]}]") else name
            for name in names
        ]
    from sweeps.runs.metrics import our_name

    return tuple(dict.fromkeys(our_name(name) for name in (*names, "output_tokens_per_s")))


def _bench(
    benches: dict[str, Bench], spec: WorkloadSpec, seeds: Sequence[int], names: Sequence[str]
) -> Bench:
    from sweeps.runs.bench import Bench

    key = json.dumps(spec.content(), sort_keys=True)
    if key not in benches:
        benches[key] = Bench(spec, seeds, STREAM, names)
    return benches[key]


def _values(
    bench: Bench, configs: Sequence[ClusterConfig], names: Sequence[str]
) -> dict[str, tuple[Values, Values]]:
    first, second = (bench.run([config])[0] for config in configs)
    return {
        name: (
            np.array([one.metrics.get(name, np.nan) for one in first], np.float64),
            np.array([one.metrics.get(name, np.nan) for one in second], np.float64),
        )
        for name in names
    }


# --- rows -----------------------------------------------------------------------------------------


def _rows(
    every: Sequence[Concern],
    pairs: Mapping[str, Mapping[str, tuple[Values, Values]]],
    refused: Mapping[str, str],
    names: Sequence[str],
) -> tuple[SurvivalRow, ...]:
    main = names[0]
    direction = lookup(main)[0].direction
    family = [Pair(*pairs[name][main], direction) for name in pairs]
    verdicts = dict(zip(pairs, differences(family, BY_STUDENT), strict=True))
    found = []
    for concern in every:
        if concern.name not in pairs:
            why = refused.get(concern.name, f"not simulated yet: {concern.about}")
            found.append(SurvivalRow(concern.name, concern.title, concern.about, why, {}, None))
            continue
        changes = {name: _change(*pairs[concern.name][name]) for name in names}
        against = None
        if concern.name != NOTHING:
            against = _against(pairs[NOTHING][main], pairs[concern.name][main])
        verdict = _verdict(verdicts[concern.name], against, direction)
        found.append(
            SurvivalRow(concern.name, concern.title, concern.about, verdict, changes, against)
        )
    return tuple(found)


def _change(first: Values, second: Values) -> Estimate:
    both = np.isfinite(first) & np.isfinite(second)
    return relative_change(first[both], second[both])


def _against(before: tuple[Values, Values], after: tuple[Values, Values]) -> Estimate:
    """The ratio to the baseline with a concern ÷ that without, − 1, in %: of logarithms, seed by seed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(after[1] / after[0]) - np.log(before[1] / before[0])
    found = estimate(ratios)
    mean, low, high = (
        100 * float(np.expm1(value)) for value in (found.mean, found.low, found.high)
    )
    return Estimate(mean, low, high, found.num_seeds, found.method)


def _verdict(found: Difference, against: Estimate | None, direction: str) -> str:
    if found.verdict in (SAME, WORSE):
        return NO_EFFECT if found.verdict == SAME else REVERSED
    if found.verdict != BETTER:
        return UNCLEAR
    if against is None or against.holds(0.0):
        return SURVIVES
    return SMALLER if (against.mean > 0) == (direction == LOWER) else LARGER


# --- texts ----------------------------------------------------------------------------------------


def write_page(
    path: Path, promotion: Promotion, seeds: Sequence[int], num_requests: int | None, command: str
) -> None:
    """The table as a page, with its numbers beside it as .json."""
    from sweeps.promote.documents.render import render

    table = survival_of(promotion, seeds, num_requests)
    with replacing(path) as written:
        written.write_text(render("survival.md.j2", table=table, command=command), encoding="utf-8")
    write_json(path.with_suffix(".json"), table.plain())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return round(value, 6) if np.isfinite(value) else None
    return value
