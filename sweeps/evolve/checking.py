"""Compare a program with its task's baseline on new seeds: the runs, and the sentences about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from blis_jax.commands.options import outputs
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import plain, write_json
from blis_jax.files.formats import number_of
from blis_jax.reports import page
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.words import cluster_line, joined, metric_name
from blis_jax.statistics.intervals import Estimate, Inference
from blis_jax.statistics.paired import WORSE, fewest_for_verdict
from sweeps.compare.judge import interval_sentence
from sweeps.evolve.programs import EvolvedRouter, read_program, router_of
from sweeps.evolve.score import ClassChange, GuardVerdict, TaskRuns, changes, gain, guarded, reached
from sweeps.evolve.task import Task, load_task, plain_task
from sweeps.runs.measured import versions
from sweeps.runs.requests import check_count

if TYPE_CHECKING:
    from blis_jax.commands.options.outputs import OutputPaths
    from sweeps.evolve.check import EvolveCheckOptions

MOST_SAID = 4  # classes that got worse


@dataclass(frozen=True)
class Checked:
    """The comparison of a program with the baseline.

    Attributes:
        task: the task that the program was searched for.
        program: the program.
        baseline: the router that the program is compared with.
        seeds: the new seeds.
        inference: the settings of the intervals.
        published: the gain that the search reported, %; None where no gain was reported.
        here: the gain on the search's seeds.
        new: the gain on the new seeds.
        draws: how many subsets of new seeds of the search's size reach `published`, and the number of such subsets.
        changes: the differences by workload, class and metric, whose intervals hold together.
        guards: the verdicts on the task's guards, on the new seeds.
        notes: further remarks on the program, as sentences.
    """

    task: Task
    program: EvolvedRouter
    baseline: EvolvedRouter
    seeds: tuple[int, ...]
    inference: Inference
    published: float | None
    here: Estimate
    new: Estimate
    draws: tuple[int, int]
    changes: Sequence[ClassChange]
    guards: Sequence[GuardVerdict]
    notes: tuple[str, ...] = ()

    @property
    def worse(self) -> list[ClassChange]:
        """Return the changes that are worse with confidence, the largest first."""
        worse = [change for change in self.changes if change.difference.verdict == WORSE]
        return sorted(worse, key=lambda change: -abs(change.difference.percent.mean))

    @property
    def fewest(self) -> int:
        """Return the fewest new seeds on which the gain has a verdict."""
        return fewest_for_verdict(self.inference.confidence)

    @property
    def direction(self) -> int:
        """Return 1 if the program is better for sure, -1 if it is worse for sure, else 0."""
        if len(self.seeds) < self.fewest:
            return 0
        return int(self.new.low > 0) - int(self.new.high < 0)

    @property
    def broken(self) -> list[GuardVerdict]:
        """Return the guards whose bound the program's mean breaks."""
        return [judged for judged in self.guards if judged.is_broken]


def checked(options: EvolveCheckOptions, paths: OutputPaths, usual: range, command: str) -> int:
    """Run the program and the baseline; write and print the findings; return the exit code.

    Args:
        options: the command's options.
        paths: the paths of the files to write.
        usual: the seeds to use where the options name none.
        command: the command line that reproduces the results.
    """
    task = load_task(str(options.task))
    folder = paths.result.parent / "programs"
    program = read_program(str(options.program), folder)
    baseline = router_of(task.file.baseline, task, folder)
    seeds = _new_seeds(options, task, usual)
    inference = Inference(options.confidence, options.bootstrap, options.random_state)
    published = task.file.published if options.published is None else options.published
    runs = TaskRuns(task, (*task.file.seeds, *seeds))
    first, new = (runs.pairs(baseline, program, of) for of in (task.file.seeds, seeds))
    names = {pair.requests.name: task.names(pair.requests) for pair in new}
    draws = (0, 0)
    if published is not None:
        draws = reached(new, task.metrics, len(task.file.seeds), published)
    result = Checked(
        task, program, baseline, seeds, inference, published, gain(first, task.metrics, inference),
        gain(new, task.metrics, inference), draws, changes(new, names, inference), list(guarded(task, new)),
        (*program.notes, *runs.notes(program)),
    )  # fmt: skip
    findings = findings_of(result, len(runs.runs))
    document = {"format": number_of("evolve check"), "kind": "evolve check", **_content(result), "versions": versions(),
                "command": command, **findings.to_json()}  # fmt: skip
    title = f"{program.name} on new seeds"
    files: outputs.Files = [
        (paths.result, lambda path: write_json(path, plain(document))),
        (paths.report, lambda path: page.write(findings, path, title, command, versions())),
    ]
    outputs.show(findings, lambda: outputs.write_files(files), options)
    return 0


def _new_seeds(options: EvolveCheckOptions, task: Task, usual: range) -> tuple[int, ...]:
    """Return the new seeds or windows: those that the options name, else the usual ones; refuse any of the search's."""
    used = task.file.seeds
    if task.is_windowed and not options.has_number:
        counts = [
            requests.trace.num_windows for requests in task.requests if requests.trace is not None
        ]
        every = range(1, min(filter(None, counts)) + 1)
        seeds = tuple(seed for seed in every if seed not in used)
    else:
        has_first = options.first_seed is not None or "," in (options.seeds or "")
        from_usual = replace(options, seeds=options.seeds or str(len(usual)), first_seed=usual[0])
        seeds = given_seeds(options if has_first else from_usual) or ()
    shared = [seed for seed in seeds if seed in used]
    if shared:
        raise ConfigError(
            f"--seeds: the search used {task.run_word}s {', '.join(map(str, shared))}, on which the program was "
            f"chosen; give others than {', '.join(map(str, used))}, such as --seeds {len(usual)} --first-seed "
            f"{max(usual[0], max(used) + 1)}"
        )
    check_count(seeds, 3, "to check a program", "reference")
    return seeds


def _content(result: Checked) -> dict[str, Any]:
    """Return the entries of the JSON document beside the findings."""
    return {
        "task": plain_task(result.task), "program": result.program.name, "baseline": result.baseline.name,
        "seeds": list(result.seeds), "published": result.published,
        "gain_on_search_seeds": result.here.to_json(), "gain": result.new.to_json(),
        "changes": [
            {"workload": change.workload, "class": change.slo_class, "metric": change.name,
             **change.difference.to_json()}
            for change in result.changes
        ],
        "guards": [
            {"workload": judged.workload, "guard": judged.guard.model_dump(), "verdict": judged.verdict.word,
             "reason": judged.verdict.reason}
            for judged in result.guards
        ],
    }  # fmt: skip


# --- words ----------------------------------------------------------------------------------------


def findings_of(result: Checked, num_runs: int) -> Findings:
    """Return the findings: the answer, a table of changes by class, and the guards."""
    task, word = result.task, result.task.run_word
    level = f"{100 * result.inference.confidence:g} %"
    return Findings(
        Answer(
            asked=(
                f"Is {result.program.name} better than {result.baseline.name} on {_runs(result.seeds, word)}, which "
                f"its search did not use? Task {task.file.name}, "
                f"{joined([requests.name for requests in task.requests])}."
            ),
            verdict=(_gain_said(result), *_published_said(result), *_worse_said(result), *_broken_said(result)),
            sure=Sentence.of(
                f"{interval_sentence(len(result.seeds), result.inference, word)}. What changes by class holds "
                f"together, at {level}. On {_of_search(task)} a program is as good as it was chosen to be."
            ),
            price=Sentence.of(Quantity.whole(num_runs), " runs."),
            next=_next(result),
            cluster=cluster_line({router.name: router.config(task) for router in (result.baseline, result.program)}),
        ),
        (Remarks(tuple(f"note: {note}" for note in result.notes), is_brief=True), _table(result), _guards(result)),
    )  # fmt: skip


def _runs(seeds: Sequence[int], word: str) -> str:
    are_all = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    listed = f"{seeds[0]} to {seeds[-1]}" if are_all else joined([str(seed) for seed in seeds])
    return f"{len(seeds)} {word}s ({listed})"


def _of_search(task: Task) -> str:
    seeds = task.file.seeds
    return f"the search's {task.run_word}{'s' * (len(seeds) > 1)} {joined([str(seed) for seed in seeds])}"


def _percent(estimate: Estimate) -> Quantity:
    return Quantity(estimate.mean, estimate.low, estimate.high, " %", is_signed=True)


def _gain_said(result: Checked) -> Sentence:
    word = {1: "Better", -1: "Worse", 0: "No difference is sure"}[result.direction]
    return Sentence.of(
        f"{word}: a gain of ", _percent(result.new), f" over {result.baseline.name}."
    )


def _published_said(result: Checked) -> Iterator[Sentence]:
    word, here = result.task.run_word, result.here.mean
    of_search = f"on {_of_search(result.task)} it is {here:+.4g} %"
    if result.published is None:
        yield Sentence.of(f"The search tells no gain; {of_search}.")
        return
    parts = [f"Published is {result.published:+.4g} %; {of_search} here."]
    reached_, of = result.draws
    if of:
        size = len(result.task.file.seeds)
        what = f"sets of {size} new {word}s" if size > 1 else f"new {word}s"
        parts.append(
            f" {reached_ or 'None'} of the {of} {what} reach{'es' * (reached_ < 2)} the published gain."
        )
    yield Sentence.of("".join(parts))


def _worse_said(result: Checked) -> Iterator[Sentence]:
    """Yield one sentence: which metrics got worse with confidence, or that none did."""
    worse = result.worse
    if not worse:
        yield Sentence.of("Nothing got worse for sure, in any class.")
        return
    parts: list[str | Quantity] = []
    for worsened in worse[:MOST_SAID]:
        place = f" on {worsened.workload}" if len(result.task.requests) > 1 else ""
        change = _percent(worsened.difference.simultaneous_percent)
        parts += [
            ", " if parts else "Worse: ",
            f"{worsened.slo_class} {metric_name(worsened.name)} ",
            change,
            place,
        ]
    left = len(worse) - MOST_SAID
    yield Sentence.of(*parts, f", and {left} more" * (left > 0), ".")


def _broken_said(result: Checked) -> Iterator[Sentence]:
    for judged in result.broken:
        yield Sentence.of(
            f"Guard {judged.verdict.word}: {judged.guard.metric} on {judged.workload}, {judged.verdict.reason}."
        )


def _next(result: Checked) -> str:
    if len(result.seeds) < result.fewest:
        count, word = len(result.seeds), result.task.run_word
        return (
            f"{count} {word}s give no verdict: by chance all favour one of two equal programs in "
            f"{200 * 2.0**-count:.3g} % of cases. Give {result.fewest} or more."
        )
    if result.direction > 0 and not result.worse and not result.broken:
        return "blis-jax robustness tells where it stays better, blis-jax promote makes a plugin of it."
    if result.worse or result.broken:
        return (
            "give the task guards for the classes that got worse, and more seeds, and search again: "
            "guards: [{metric: e2e_p95_ms[critical], direction: min, change_percent: 5}]"
        )
    return "search on more seeds: the gain of a choice on few of them is mostly chance."


def _table(result: Checked) -> Table:
    rows = tuple(
        Row(
            (
                change.workload, change.slo_class, metric_name(change.name), Quantity(change.difference.first_mean),
                Quantity(change.difference.second_mean), _percent(change.difference.simultaneous_percent),
                change.difference.verdict,
            )
        )
        for change in result.changes
    )  # fmt: skip
    columns = (
        "workload",
        "class",
        "metric",
        result.baseline.name,
        result.program.name,
        "change",
        "verdict",
    )
    return Table(columns, rows, "By class, on the new seeds", num_keys=3, name="changes")


def _guards(result: Checked) -> Table:
    rows = tuple(
        Row((judged.workload, judged.guard.metric, judged.verdict.word, judged.verdict.reason))
        for judged in result.guards
    )
    return Table(("workload", "guard", "verdict", "why"), rows, "Guards", num_keys=2, name="guards")
