"""A sweep on as many seeds as a rule asks for: it is gone on with on more seeds until the rule is content."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blis_jax.commands.sweep.execution import Done, How, run_sweep
from blis_jax.commands.sweep.plan import SweepPlan
from blis_jax.errors import ConfigError
from blis_jax.metrics.measure import Measure
from blis_jax.statistics.compared import Asked, asked_pairs, family_words
from blis_jax.statistics.intervals import BY_STUDENT, CONFIDENCE, Inference
from blis_jax.statistics.sequential import Look, StoppingRule, look, rule_words


@dataclass(frozen=True)
class Stopped:
    """A sweep, the plan with the seeds that it took, how to infer from it, and what was seen on the way."""

    plan: SweepPlan
    done: Done
    inference: Inference = BY_STUDENT
    rule: StoppingRule | None = None
    asked: Sequence[Asked] = ()
    looks: Sequence[Look] = ()

    def words(self) -> list[str]:
        """How many seeds there are, and why; nothing where their number was given."""
        if self.rule is None or not self.looks:
            return []
        last, counts = self.looks[-1], ", ".join(str(one.num_seeds) for one in self.looks)
        lines = [f"{last.num_seeds} seeds: {rule_words(self.rule)}. Looks at {counts}: {last.end}."]
        for one, found in zip(self.asked, last.differences, strict=True):
            change = found.simultaneous_percent
            text = f"{change.mean:+.2f} [{change.low:+.2f}, {change.high:+.2f}]".replace("-", "−")
            lines.append(f"  {family_words(one)}: {text} %, {found.verdict}")
        return lines


def run_until(
    plan: SweepPlan,
    measure: Measure,
    how: How,
    output: Path,
    is_resumed: bool,
    rule: StoppingRule | None,
    names: Sequence[str],
) -> Stopped:
    """The sweep, on the plan's seeds without a rule."""
    if rule is None:
        return Stopped(plan, run_sweep(plan, measure, how, output, is_resumed))
    if len(plan.points) < 2:
        raise ConfigError(
            "--precision and --decide look at differences, but there is one strategy at one place; give another"
        )
    looks: list[Look] = []
    plan = _longer(plan, max(len(plan.seeds), _kept(output) if is_resumed else 0))
    while True:
        done = run_sweep(plan, measure, how, output, is_resumed or bool(looks))
        asked = asked_pairs(done.dataset, names)
        looks.append(look(list(asked.values()), rule))
        if done.is_interrupted or looks[-1].end:
            inference = rule.inference(CONFIDENCE)
            return Stopped(plan, done, inference, rule, tuple(asked), looks)
        plan = _longer(plan, rule.next_count(len(plan.seeds), looks[-1].seen))


def _longer(plan: SweepPlan, count: int) -> SweepPlan:
    first = plan.seeds[0]
    return dataclasses.replace(plan, seeds=tuple(range(first, first + count)))


def _kept(output: Path) -> int:
    """The seeds that an earlier call got to."""
    try:
        attributes = json.loads((output / "zarr.json").read_text(encoding="utf-8"))["attributes"]
        return len(json.loads(attributes["seeds"]))
    except (OSError, ValueError, KeyError):
        return 0
