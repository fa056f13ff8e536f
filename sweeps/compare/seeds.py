"""As many seeds as a rule asks for: arms are run on more and more of them, all on the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.words import metric_name
from blis_jax.statistics.paired import Difference, Pair
from blis_jax.statistics.sequential import (
    DECIDED,
    PRECISE,
    SPENT,
    Look,
    StoppingRule,
    look,
    look_until_end,
    rule_words,
)
from sweeps.compare.report import quantity
from sweeps.runs.measured import pair_of

if TYPE_CHECKING:
    from sweeps.compare.document import CommonSetting
    from sweeps.runs.measured import KeptRuns
    from sweeps.strategies.arms import Arm

Differences = Look[tuple[Difference, ...]]
INTERRUPTED = "interrupted"
ENDS = {
    DECIDED: "every verdict is safe",
    PRECISE: "every difference is decided or known well enough",
    SPENT: "no more seeds are allowed (--most-seeds)",
    INTERRUPTED: "the user stopped the command",
}


@dataclass(frozen=True)
class EnoughSeeds:
    """A rule, and what it looks at."""

    rule: StoppingRule
    names: tuple[str, ...]  # metrics, of every arm against the first
    confidence: float

    def run(
        self, arms: Sequence[Arm], kept: KeptRuns
    ) -> tuple[list[tuple[RunSummary, ...]], list[Differences]]:
        """Run every arm on more and more seeds until the rule is met; return the runs, and what was
        seen at each look.
        """

        def runs() -> list[tuple[RunSummary, ...]]:
            return [kept.of(arm.config, arm.name) for arm in arms]

        def look_at(count: int) -> Differences:
            kept.reach(count, len(arms))
            return look(self._pairs(runs()), self.rule, self.confidence)

        looks = look_until_end(self.rule, len(kept.seeds), look_at)
        return runs(), looks

    def used(self, setting: CommonSetting, seeds: Sequence[int]) -> CommonSetting:
        """Return the setting with the seeds that were used; if the rule decides, intervals allow for the looks."""
        inference = replace(setting.inference, is_anytime=self.rule.decides)
        return replace(setting, seeds=tuple(seeds), inference=inference)

    def _pairs(self, runs: Sequence[Sequence[RunSummary]]) -> list[Pair]:
        reference, *others = runs
        return [pair_of(reference, other, name) for other in others for name in self.names]

    def document(self, arms: Sequence[Arm], looks: Sequence[Differences]) -> dict[str, Any]:
        """Return what was asked for, seen and used, as plain data."""
        judged = [(arm.name, name) for arm in arms[1:] for name in self.names]
        return stopping_json(self.rule, self.confidence, judged, looks)


def stopping_json(
    rule: StoppingRule,
    confidence: float,
    judged: Sequence[tuple[str, str]],
    looks: Sequence[Differences],
) -> dict[str, Any]:
    """Return by what rule seeds were added, and what was seen; `judged` are arms with their metrics."""
    last = looks[-1]
    return {
        "rule": rule_words(rule, confidence),
        "decides": rule.decides,
        "precision": rule.precision,
        "most_seeds": rule.most_seeds,
        "num_seeds": last.num_seeds,
        "looks": [seen.num_seeds for seen in looks],
        "end": last.end,
        "differences": [
            {
                "arm": arm,
                "metric": lookup(name)[0].name,
                "class": lookup(name)[1] or ALL,
                **difference.to_json(),
            }
            for (arm, name), difference in zip(judged, last.found, strict=True)
        ],
    }


def stopping_lines(document: Mapping[str, Any]) -> list[str]:
    """Say in words by what rule seeds were added, when it was looked, and what was found."""
    stopping = document.get("stopping")
    if not stopping:
        return []
    looks = ", ".join(map(str, stopping["looks"]))
    return [
        f"{stopping['num_seeds']} seeds: {stopping['rule']}. Looks at {looks}; then {ENDS[stopping['end']]}.",
        *(
            f"{entry['arm']}, {metric_name(entry['metric'])} of {entry['class']} requests: "
            f"{quantity(entry['simultaneous_percent'])} %, {entry['verdict']}"
            for entry in stopping["differences"]
        ),
        f"These intervals hold for {len(stopping['differences'])} together; the table judges more figures "
        "together, so its intervals are wider.",
    ]
