"""What a program of a search is worth: metrics as numbers, and artifacts from which its next version may be better."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.reading import computed_by
from blis_jax.reports.words import number
from blis_jax.statistics.intervals import BY_STUDENT
from sweeps.evolve.programs import EvolvedRouter, read_program, router_of
from sweeps.evolve.score import RunPair, changes, gain, guarded
from sweeps.evolve.task import load_task
from sweeps.evolve.task_runs import TaskRuns

FIRST = "first"  # the stage on few seeds
Evaluated = dict[str, Any]


class TaskEvaluator:
    """Evaluate programs of a task; keeps requests, runs, and programs that compute the same function."""

    def __init__(self, path: Path, folder: Path) -> None:
        """Programs are written below the folder.

        Raises:
            ConfigError: the task is at fault.
        """
        self.task, self.folder = load_task(path), folder
        self.baseline = router_of(self.task.file.baseline, self.task, folder)
        self.runs = TaskRuns(self.task, self.task.file.seeds)
        self.runs.of(self.baseline, self.task.file.seeds)
        self.seen: dict[Hashable, EvolvedRouter] = {}  # by what they compute

    @property
    def limit_s(self) -> float:
        """Return the seconds that a program may take."""
        return self.task.file.limit_s

    @property
    def num_compiled(self) -> int:
        """Return how many routers had to be compiled."""
        return sum(isinstance(table, str) for table in self.runs.tables.values())

    @property
    def late(self) -> Evaluated:
        """Return what is answered for a program that takes longer."""
        return self._failure(
            f"the program took longer than {self.limit_s:g} s; leave out loops without a bound"
        )

    def answer(self, text: str, suffix: str, stage: str) -> Evaluated:
        """Return metrics and artifacts of a program; of one that fails a score, and its error with the line.

        Raises:
            ImportError: a package is missing that reads it.
        """
        program: EvolvedRouter | None = None
        try:
            program = self._read(text, suffix)
            seeds = self.task.file.seeds
            if stage == FIRST and self.task.file.stage1 is not None:
                seeds = self.task.file.stage1.seeds
            pairs = self.runs.pairs(self.baseline, self._alike(program), seeds)
            return self._worth(program, pairs)
        except ImportError:
            raise
        except Exception as error:
            if program is not None:
                return self._failure(program.told(error))
            return self._failure(str(error) if isinstance(error, ConfigError) else repr(error))

    def _read(self, text: str, suffix: str) -> EvolvedRouter:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"program{'.py' if suffix == '.py' else '.go'}"
        path.write_text(text, encoding="utf-8")
        return read_program(str(path), self.folder)

    def _alike(self, program: EvolvedRouter) -> EvolvedRouter:
        """Return the first program that computes the same function, so that it need not run again."""
        table = self.runs.as_table(program)
        if not isinstance(table, str):
            return self.seen.setdefault(table.routing, program)
        config = program.config(self.task)
        policy = registry.find("routing", program.router)
        computed = computed_by(policy, config.num_instances, len(config.scorers()))
        if computed is None:
            return program
        return self.seen.setdefault(hashlib.sha256(computed.encode()).hexdigest(), program)

    def _worth(self, program: EvolvedRouter, pairs: Sequence[RunPair]) -> Evaluated:
        weights = self.task.metrics
        whole = gain(pairs, weights, BY_STUDENT)
        guards = list(guarded(self.task, pairs, by_mean=True))
        taken = sum(one.guard.weight * one.past for one in guards)
        score = whole.mean - taken
        if not math.isfinite(score):
            return self._failure(
                "a metric of the score has no value: no request of its class came to an end"
            )
        metrics = {
            "combined_score": score, "gain_percent": whole.mean, "num_seeds": float(len(pairs[0].program)),
            "guards_broken": float(sum(one.is_broken for one in guards)), "failed": 0.0,
        }  # fmt: skip
        if math.isfinite(whole.high):
            metrics["half_width_percent"] = (whole.high - whole.low) / 2
        if len(pairs) > 1:
            metrics |= {
                f"gain_percent_{pair.requests.name}": gain([pair], weights, BY_STUDENT).mean
                for pair in pairs
            }
        artifacts = {"by_class": self._by_class(pairs)}
        broken = [
            f"{one.guard.metric} on {one.workload} is past its bound by {number(one.past)}: "
            f"{number(one.guard.weight * one.past)} off the score" for one in guards if one.is_broken
        ]  # fmt: skip
        artifacts |= {"guards": "\n".join(broken)} if broken else {}
        notes = [*program.notes, *self.runs.notes(program)]
        artifacts |= {"notes": "\n".join(notes)} if notes else {}
        return {"metrics": metrics, "artifacts": artifacts}

    def _by_class(self, pairs: Sequence[RunPair]) -> str:
        """Return what changed against the baseline, a line for each workload, class and metric."""
        names = {pair.requests.name: self.task.names(pair.requests) for pair in pairs}
        return "\n".join(
            f"{one.workload}, {one.slo_class}, {one.name}: {number(one.difference.first_mean)} -> "
            f"{number(one.difference.second_mean)} ({number(one.difference.percent.mean, signed=True)} %)"
            for one in changes(pairs, names, BY_STUDENT)
        )

    def _failure(self, error: str) -> Evaluated:
        metrics = {"combined_score": self.task.file.failure_score, "failed": 1.0}
        return {"metrics": metrics, "artifacts": {"error": error}}
