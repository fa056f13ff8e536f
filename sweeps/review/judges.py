"""All rule judges by name, and what is run for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.measure import DEFAULT_TARGETS
from sweeps.principles.figures import figures_of, reported_names
from sweeps.review.candidates import Candidate, Exhibit, Judge
from sweeps.review.classes import INERT, PROXY, STARVATION
from sweeps.review.numbers import BOUNDS, STABILITY
from sweeps.review.routing import METRICS, OSCILLATION, SIGNAL, RunDecisions, decisions_of
from sweeps.runs.experiment import Experiment, targets_of

if TYPE_CHECKING:
    from blis_jax.workload.table import RequestTable
    from sweeps.search.objectives import Valuation

JUDGES = {
    judge.name: judge
    for judge in (SIGNAL, OSCILLATION, STABILITY, PROXY, STARVATION, INERT, BOUNDS)
}


def judges_named(text: str | None) -> tuple[Judge, ...]:
    """Return the judges of a list such as `signal,inert`; all if None.

    Raises:
        ConfigError: a name is unknown, or none is given.
    """
    if text is None:
        return tuple(JUDGES.values())
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in JUDGES:
            raise ConfigError(
                f"--judges: {name!r} is unknown; use some of {', '.join(JUDGES)}"
                f"{closest(name, JUDGES)}"
            )
    if not names:
        raise ConfigError(f"--judges: none is named; use some of {', '.join(JUDGES)}")
    return tuple(judge for name, judge in JUDGES.items() if name in names)


def exhibit_of(
    candidate: Candidate,
    judges: Sequence[Judge],
    seeds: tuple[int, ...],
    stream: str,
    valuation: Valuation | None = None,
) -> Exhibit:
    """Run a candidate and all that its judges compare it with, on common seeds."""
    configs = [candidate.config]
    for judge in judges:
        configs += judge.configs(candidate).values()
    configs = list(dict.fromkeys(configs))
    names = tuple(dict.fromkeys((*METRICS, *reported_names(candidate.spec))))
    wanted = () if valuation is None else valuation.names
    targets = DEFAULT_TARGETS if valuation is None else targets_of(valuation.strategy)
    experiment = Experiment.on(candidate.spec, seeds, stream, wanted, targets)
    made = experiment.summaries(configs, lambda record: figures_of(record, names, True))
    worth = None if valuation is None else valuation.worth(experiment.run([candidate.config])[0])
    block_size = candidate.config.block_size_in_tokens
    table = experiment.drawn.table(candidate.spec, seeds[0], block_size)
    return Exhibit(
        candidate,
        seeds,
        dict(zip(configs, made, strict=True)),
        _decisions(candidate, table, seeds[0], judges),
        None if worth is None or worth.failures else worth.score,
    )


def _decisions(
    candidate: Candidate, table: RequestTable, seed: int, judges: Sequence[Judge]
) -> RunDecisions | None:
    needed = {judge.name for judge in judges} & {SIGNAL.name, STABILITY.name}
    return decisions_of(candidate.config, table, seed) if needed else None
