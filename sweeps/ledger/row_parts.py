"""The runs of a row in parts, which `ledger add` and `ledger replay` write with `--part` and `merge` joins."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands import cli
from blis_jax.commands.options.outputs import output_path
from blis_jax.errors import ConfigError
from blis_jax.files.journal import Journal
from blis_jax.metrics.run_summary import RunSummary, read_summary
from blis_jax.reports.findings import Answer
from sweeps.ledger.adding import experiments_for, planned_row
from sweeps.ledger.check import made_again
from sweeps.ledger.entry import NAME
from sweeps.ledger.result import conditions_asked, criteria_hash, is_on_problem
from sweeps.ledger.trial import Asked, Experiments, Known, RowFigures, arms_asked, policy_seeds_of
from sweeps.runs.parts import MERGED, make_part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blis_jax.cluster.config import ClusterConfig
    from sweeps.ledger.book import Ledger
    from sweeps.ledger.entry import AddOptions, LedgerReplayOptions
    from sweeps.runs.experiment import Experiment
    from sweeps.runs.parts import RunPart


@dataclass(frozen=True)
class RowRuns:
    """All runs that an action needs of a row, and the configurations that they are runs of."""

    action: str
    id: str
    about: Mapping[str, Any]  # what figures depend on besides
    experiments: Experiments
    asked: Asked

    def journal(self, path: Path, part: RunPart | None = None) -> Journal:
        """Return the journal of the runs, or of a part of them."""
        kind = f"ledger {self.action} {self.id}"
        return Journal(path, kind if part is None else part.kind_of(kind), self.about)

    def known(self, path: Path) -> Known:
        """Return the runs that were joined, by `Experiments.key_of`.

        Raises:
            ConfigError: there is no such file, or it has other runs.
        """
        if not path.is_file():
            raise ConfigError(f"--from: {path} does not exist; give what blis-jax merge wrote")
        lines = self.journal(path).lines()
        return {key: [_run_of(document) for document in runs] for key, runs in lines}

    def make_part(self, options: AddOptions | LedgerReplayOptions, part: RunPart) -> Answer:
        """Make a part of the runs; return the sentence that the action prints."""
        path = output_path(
            options.output or "", "--output", (".jsonl",), options.overwrite, options.resume
        )
        wanted = {
            self.experiments.key_of(experiment, config): (experiment, config)
            for experiment, configs in self.asked
            for config in configs.values()
        }
        plan = []
        for key, (experiment, config) in wanted.items():
            num_seeds = len(experiment.seeds)
            count = experiment.num_distinct(config, num_seeds)
            plan.append((key, count, num_seeds // count))
        track = "" if options.track is None else f" --track {options.track}"
        then = f"blis-jax ledger {self.action} {self.id}{track} --from {MERGED}"
        journal = self.journal(path, part)
        with journal.held(options.resume), cli.resumable(NAME, path):
            made = make_part(journal, part, plan, then, lambda missing: _made(wanted, missing))
        return part.answer(path, *made)


def _made(
    wanted: Mapping[str, tuple[Experiment, ClusterConfig]], missing: Sequence[tuple[str, int]]
) -> Iterator[tuple[str, list[int], list[Any]]]:
    """Make the missing runs, experiment by experiment; yield key, places and runs, a compiled call's runs by key."""
    for experiment in dict.fromkeys(wanted[key][0] for key, _ in missing):
        keys = [key for key, (owner, _) in wanted.items() if owner is experiment]
        places = [(keys.index(key), place) for key, place in missing if key in keys]
        configs = [wanted[key][1] for key in keys]
        for finished in experiment.each(configs, RowFigures.of(experiment), places):
            by_key: dict[str, dict[int, RunSummary]] = {}
            for (at, place), run in finished:
                by_key.setdefault(keys[at], {})[place] = run
            for key, runs in by_key.items():
                yield key, list(runs), [_document_of(run) for run in runs.values()]


def _document_of(run: RunSummary) -> dict[str, Any]:
    """Return a run as plain data, with the outcomes of its requests."""
    if run.lives is None:
        return run.document()
    packed = base64.b85encode(zlib.compress(run.lives.astype("<i8").T.tobytes(), 9)).decode()
    return run.document() | {"lives": [run.lives.shape[1], packed]}


def _run_of(document: dict[str, Any]) -> RunSummary:
    num_facts, packed = document.pop("lives", (0, ""))
    run = read_summary(document)
    if not packed:
        return run
    columns = np.frombuffer(zlib.decompress(base64.b85decode(packed)), "<i8")
    return dataclasses.replace(run, lives=columns.reshape(num_facts, -1).T.astype(np.int64))


# --- what each action asks for --------------------------------------------------------------------


def runs_to_add(ledger: Ledger, name: str, values: Mapping[str, Any]) -> RowRuns:
    """Return the runs of a planned row that has no result yet; `values` are the row's values in the command.

    Raises:
        ConfigError: the row is not planned or planned otherwise, has no runs or a result, or has a stopping rule that
            adds seeds.
    """
    if name not in [row.id for row in ledger.rows()]:
        raise ConfigError(
            f"--part: the ledger has no row {name}, and parts are of one written hypothesis; write it first, "
            f"blis-jax ledger plan {name} …"
        )
    row = planned_row(ledger, values)
    if row.result is not None:
        raise ConfigError(
            f"{name} has a result already; blis-jax ledger replay {name} runs it again"
        )
    if not row.hypothesis.is_simulated:
        raise ConfigError(f"--part: {name} has no runs, its evidence is {row.hypothesis.evidence}")
    if row.hypothesis.stopping is not None:
        raise ConfigError(
            f"--part: {name} adds seeds by what was found before; leave it out, or plan a row of fixed seeds"
        )
    experiments, problem = experiments_for(ledger), ledger.problem
    runs = list(arms_asked(row.hypothesis, ledger.folder, experiments))
    if is_on_problem(row.hypothesis, problem):
        runs += conditions_asked(row.hypothesis, problem, experiments).values()
    about = {"hypothesis": row.planned["hash"], "criteria": criteria_hash(problem)}
    return RowRuns("add", name, about, experiments, runs)


def runs_to_replay(ledger: Ledger, name: str) -> RowRuns:
    """Return the runs of a row that has its result; raises the errors of `made_again`."""
    row, hypothesis, experiments = made_again(ledger, name)
    assert row.result is not None
    rule = policy_seeds_of(row.result)
    runs = arms_asked(hypothesis, ledger.folder, experiments, rule)
    return RowRuns("replay", name, {"result": row.result["hash"]}, experiments, runs)
