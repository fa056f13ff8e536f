"""As many seeds as a hypothesis asks for: its arms run on more and more of them until its claims are clear."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.commands.options.stopping_flags import EnoughSeedsOptions, first_seeds, rule_of
from blis_jax.metrics.run_summary import Tails
from blis_jax.statistics.sequential import Look, Seen, look_until_end, rule_words
from sweeps.claims.grammar import REGION
from sweeps.claims.judge import ClaimVerdict
from sweeps.ledger.hypothesis import Hypothesis, StoppingRecord
from sweeps.ledger.result import judge_all, measured_from_runs
from sweeps.ledger.trial import ArmRuns, Experiments, run_hypothesis

FAILED = "a run failed, so that more seeds decide nothing"


@dataclass(frozen=True)
class EnoughRuns:
    """The runs that were needed, the hypothesis on their seeds, and where it was looked at."""

    hypothesis: Hypothesis
    runs: Mapping[str, ArmRuns]
    looks: tuple[int, ...] = ()
    end: str = ""

    def content(self) -> dict[str, Any]:
        """Return what the record says of the added seeds; nothing where the number of seeds was fixed."""
        if self.hypothesis.stopping is None:
            return {}
        words = rule_words(self.hypothesis.stopping.rule, self.hypothesis.rule.confidence)
        return {"stopping": {"rule": words, "looks": list(self.looks), "end": self.end}}


def stopping_from(values: Mapping[str, Any], seeds: Sequence[int]) -> StoppingRecord | None:
    """Return the stopping rule that options or an entry of a file ask for; None if the number of seeds is fixed."""
    rule = rule_of(EnoughSeedsOptions.of(values))
    if rule is None:
        return None
    first_seeds(seeds, rule)
    return StoppingRecord(
        decides=rule.decides, precision=rule.precision, most_seeds=rule.most_seeds
    )


def values_of(stopping: StoppingRecord | None) -> dict[str, Any]:
    """Return a stopping rule as the entries of a file."""
    if stopping is None:
        return {}
    precision = {} if stopping.precision is None else {"precision": _percent(stopping.precision)}
    decide = {"decide": True} if stopping.decides else {}
    return {**decide, **precision, "most_seeds": stopping.most_seeds}


def options_of(stopping: StoppingRecord | None) -> list[str]:
    """Return a stopping rule as words of a command."""
    words: list[str] = []
    for name, value in values_of(stopping).items():
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [str(value)]
    return words


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def run_until_enough(hypothesis: Hypothesis, folder: Path, experiments: Experiments) -> EnoughRuns:
    """Run every arm on the seeds of the hypothesis, or on as many as its rule asks for."""
    done = EnoughRuns(hypothesis, run_hypothesis(hypothesis, folder, experiments))
    if hypothesis.stopping is None:
        return done
    rule, first = hypothesis.stopping.rule, hypothesis.seeds[0]

    def look_at(count: int) -> Look[EnoughRuns]:
        """Run on so many seeds, and judge the hypothesis on all of them."""
        nonlocal done
        known = done.hypothesis.seeds
        if count > len(known):
            more = range(first + len(known), first + count)
            further = run_hypothesis(hypothesis.on(more), folder, experiments)
            done = EnoughRuns(hypothesis.on((*known, *more)), _joined(done.runs, further))
        judged = judge_all(done.hypothesis, measured_from_runs(done.runs))
        seen = tuple(_seen(judgement) for judgement in judged)
        has_failed = any(judgement.reading is None for judgement in judged)
        return Look(count, done, seen, FAILED if has_failed else rule.end(count, seen))

    looks = look_until_end(rule, len(hypothesis.seeds), look_at)
    counts = tuple(judgement.num_seeds for judgement in looks)
    return dataclasses.replace(done, looks=counts, end=looks[-1].end)


def _seen(judged: ClaimVerdict) -> Seen:
    """Return a claim as decided if its interval lies in its region or outside, whatever single seeds say."""
    if judged.reading is None or judged.claim is None:
        return Seen(np.inf, is_decided=False)
    interval, claim = judged.reading.mean, judged.claim
    half = (interval.high - interval.low) / 2
    scale = 100.0 if claim.is_change or claim.shape != REGION else abs(interval.mean)
    return Seen(
        half / scale if np.isfinite(half) and scale else np.inf,
        is_decided=judged.is_clear,
        is_same=half == 0.0,
    )


def _joined(runs: Mapping[str, ArmRuns], more: Mapping[str, ArmRuns]) -> dict[str, ArmRuns]:
    """Return the runs of every arm on all seeds, in order."""
    return {role: _both(arm, more[role]) for role, arm in runs.items()}


def _both(one: ArmRuns, other: ArmRuns) -> ArmRuns:
    return ArmRuns(
        one.outcomes + other.outcomes,
        {
            name: np.concatenate([values, other.figures[name]])
            for name, values in one.figures.items()
        },
        one.num_broken_invariants + other.num_broken_invariants,
        {name: _tails(tails, other.tails[name]) for name, tails in one.tails.items()},
        one.fates + other.fates,
    )


def _tails(one: Tails, other: Tails) -> Tails:
    columns = (field.name for field in dataclasses.fields(Tails))
    return Tails(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in columns))
