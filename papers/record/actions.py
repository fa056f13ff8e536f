"""What the command of a record does: both tables, the figures' data and pictures, or only a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.commands import cli
from blis_jax.errors import ConfigError, capital, closest
from papers.pages import answer, csv_of, write_text
from papers.record import tables
from papers.record.figures import DATA, PICTURES, PaperFigure, shipped_data
from papers.record.parts import SettingsAsk, make_paper_part, take_joined
from papers.record.published import Classifier
from papers.record.runs import PaperRuns, elapsed, estimated_s
from papers.record.survival import judged, judged_pooled
from sweeps.claims.words import EXACT, SAYS_SO, SURVIVES

if TYPE_CHECKING:
    from papers.record.claims import AnyClaim
    from papers.record.command import RecordOptions
    from papers.record.definition import PaperRecord
    from papers.record.quantities import Samples
    from papers.record.settings import RunSetting


# --- the two tables -------------------------------------------------------------------------------


def published(job: PaperJob) -> None:
    """Write and print the table on the published seeds."""
    record = job.record
    samples = _samples(job, "reference", record.seeds)
    beside = record.beside_heading or None
    classifier = Classifier(samples, record.seeds, record.beside, _missing(job))
    records = tables.published_records(classifier.classified(job.claims), beside)
    columns = tables.published_columns(beside)
    heading = f"{capital(record.title)} on its own seeds"
    first, *others = [str(seed) for seed in record.seeds]
    words = (
        f"Every claim of the record beside what this simulator gives with seeds "
        f"{', '.join([first, *others[:-1]])} and {others[-1]} and the reference's own requests. `ours` is "
        f"the mean of the {_number(len(record.seeds))} seeds; `difference` is ours minus published. "
        f"{len(records)} claims. {tables.counts(records, 'class')}."
    )
    paragraphs = (words, *record.remarks)
    _write(job, "published", heading, paragraphs, records, records, columns)
    job.print(answer(
        f"Does {record.title} come out again on its own seeds, claim by claim?",
        [f"{len(records)} claims. {tables.counts(records, 'class')}."],
        "the published seeds alone, with the reference's own requests, so no figure has an interval.",
        _price(job, len(record.seeds)),
        "--seeds 1000 says which claims survive on other seeds." if not job.num_seeds
        else "the table of many seeds follows.",
    ))  # fmt: skip
    job.print(tables.printed(records, columns, (EXACT, SAYS_SO)))


def many(job: PaperJob) -> None:
    """Write and print the table on many seeds."""
    samples = _samples(job, job.stream, job.seeds)
    missing = _missing(job)
    verdicts = judged(job.claims, samples, missing)
    pooled = judged_pooled(job.claims, samples, missing, job.record.beside)
    records = tables.survival_records(verdicts, pooled)
    readable = tables.with_intervals(records)
    heading = f"Which claims survive on {job.num_seeds} seeds"
    words = (
        f"{_survival_words(job)} {len(records)} claims. {tables.counts(records, 'verdict')}.",
        _pooled_words(job, records),
    )
    name = f"survival_{job.stream}_{job.num_seeds}"
    _write(job, name, heading, words, records, readable, tables.SURVIVAL_COLUMNS)
    job.print(["", *answer(
        f"Which claims of {job.record.title} survive on {job.num_seeds} seeds?",
        [f"{len(records)} claims. {tables.counts(records, 'verdict')}."],
        "95 % for each claim by itself; changes are paired by seed.",
        _price(job, job.num_seeds),
        f"{job.output / 'results' / name}.md has every claim with its intervals and reasons.",
    )])  # fmt: skip
    shown = [name for name in tables.SURVIVAL_COLUMNS if name != "pooled verdict"]
    job.print(tables.printed(readable, shown, (SURVIVES,)))


def _price(job: PaperJob, num_seeds: int) -> str:
    count = len(job.record.runnable(job.claims))
    return f"{count} setting{'s' * (count != 1)} × {num_seeds} seeds, kept in {job.parts}."


def _survival_words(job: PaperJob) -> str:
    first, *_, last = job.seeds
    whose = "this simulator's generator" if job.stream == "jax" else "the reference's generator"
    return (
        f"Every claim on seeds {first} to {last}, requests drawn by {whose}. Measured: the mean with "
        "its 95 % interval (Student's t over seeds; changes are paired by seed, in % of the "
        "baseline's mean, with the interval of the ratio's logarithm). Three seeds: where 95 of 100 "
        "experiments with three seeds lie. A figure survives if the measured mean is within 5 "
        "percentage points (changes, shares), 10 % (others) or what `~` stands for, and a change has "
        "the published direction beyond chance; with the direction alone it is `direction only`. "
        "Runs that do not come to their end are left out and named."
    )


def _pooled_words(job: PaperJob, records: Sequence[tables.Record]) -> str:
    """Return what the pooled column shows, and for how many claims the pooled verdict differs."""
    aside = (
        " (of the cluster, also where the record has its worst instance)"
        if job.record.beside
        else ""
    )
    both = [record for record in records if record["pooled_verdict"]]
    others = [record for record in both if record["pooled_verdict"] != record["verdict"]]
    rows = ", ".join(dict.fromkeys(record["row"] for record in others))
    where = f" (row{'s' * (',' in rows)} {rows})" if others else ""
    return (
        "Measured is the mean over seeds of each run's P99. Pooled is the same claim with the P99 of the "
        f"requests of all runs together{aside}, which does not depend on how many requests a run has; its "
        "verdict follows the same rule, though the published number is one of single runs. "
        f"{len(others)} of {len(both)} claims about a P99 get another verdict{where}."
    )


def _number(count: int) -> str:
    return {2: "two", 3: "three"}.get(count, str(count))


def _missing(job: PaperJob) -> dict[str, str]:
    """Why settings cannot be run, by their names."""
    settings = job.record.settings.values()
    return {setting.name: setting.missing for setting in settings if setting.missing}


def _samples(job: PaperJob, stream: str, seeds: Sequence[int]) -> Samples:
    runs, measurement = job.runs(stream), job.record.measurement
    settings = job.record.runnable(job.claims)
    _announce(job, runs.missing(settings, seeds, measurement), stream, len(seeds))
    return runs.get(settings, seeds, measurement)


def _announce(job: PaperJob, missing: Sequence[RunSetting], stream: str, num_seeds: int) -> None:
    if missing and not job.is_quiet:
        words = _estimate_words(missing, stream, num_seeds, estimated_s(missing, num_seeds))
        cli.say(job.record.package, words)


def _estimate_words(
    missing: Sequence[RunSetting], stream: str, num_seeds: int, seconds: float
) -> str:
    num_pressed = sum(setting.is_pressed for setting in missing)
    return (
        f"{len(missing)} settings × {num_seeds} seeds ({stream}) to simulate, {num_pressed} of them "
        f"block by block: about {max(seconds / 60, 1):.0f} min on two free cores"
    )


def _write(
    job: PaperJob,
    name: str,
    heading: str,
    words: Sequence[str],
    records: Sequence[tables.Record],
    readable: Sequence[tables.Record],
    columns: Sequence[str],
) -> None:
    folder = job.output / "results"
    write_text(folder / f"{name}.csv", csv_of(records))
    write_text(folder / f"{name}.md", tables.markdown_text(heading, words, readable, columns))


# --- figures --------------------------------------------------------------------------------------


def _figure_data(job: PaperJob) -> Any:
    """Return the record's module that computes the data of its figures."""
    return import_module(f"{job.record.package}.figures.data")


def compute_data(job: PaperJob) -> None:
    """Compute the data of every figure."""
    data, runs, seeds = _figure_data(job), job.runs("jax"), tuple(range(job.options.figure_seeds))
    missing = runs.missing(data.needed(), seeds, job.record.measurement)
    _announce(job, missing, "jax", len(seeds))
    data.compute(runs, seeds, job.output / DATA)


def draw(job: PaperJob) -> None:
    """Draw every figure, from data computed here or from those that come with the package."""
    figures = job.record.figures
    for figure in figures:
        path = job.output / PICTURES / f"{figure.name}.png"
        with cli.writing(path):
            figure.draw(_data_of(job, figure), path)
    num_own = sum(_data_of(job, figure) == job.output / DATA for figure in figures)
    job.print(
        [
            "",
            f"{len(figures)} figures in {job.output / PICTURES}, {num_own} from data in "
            f"{job.output / DATA}, the others from those of the package.",
        ]
    )


def _data_of(job: PaperJob, figure: PaperFigure) -> Path:
    computed = job.output / DATA
    is_here = (computed / f"{figure.name}.csv").is_file()
    return computed if is_here else shipped_data(job.record.package)


# --- only a plan ----------------------------------------------------------------------------------


def plan(job: PaperJob) -> None:
    """Print the simulations to make, without making them."""
    for stream, seeds, some in _wanted(job):
        missing = job.runs(stream).missing(some, seeds, job.record.measurement)
        seconds = estimated_s(missing, len(seeds))
        print(
            _estimate_words(missing, stream, len(seeds), seconds)
            if missing
            else f"{len(some)} settings × {len(seeds)} seeds ({stream}): all kept in {job.parts}"
        )


def _wanted(job: PaperJob) -> list[tuple[str, tuple[int, ...], list[RunSetting]]]:
    """Return the streams, seeds and settings to simulate, as far as they are known before the runs."""
    settings = job.record.runnable(job.claims)
    wanted = [("reference", job.record.seeds, settings)]
    if job.num_seeds:
        wanted.append((job.stream, job.seeds, settings))
    if job.options.figures:
        wanted.append(("jax", tuple(range(job.options.figure_seeds)), _figure_data(job).needed()))
    return wanted


@dataclass(frozen=True)
class PaperJob:
    """The work that the options ask for."""

    record: PaperRecord
    options: RecordOptions
    claims: tuple[AnyClaim, ...]
    output: Path
    parts: Path

    @property
    def num_seeds(self) -> int:
        """Return the number of seeds that `--seeds` adds to the published ones; 0 without the option."""
        return self.options.seeds or 0

    @property
    def stream(self) -> str:
        """Return the stream that draws the requests of the many seeds, `reference` or `jax`."""
        return self.options.rng or "jax"

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds beside the published ones."""
        first = self.record.first_reference_seed if self.stream == "reference" else 0
        return tuple(range(first, first + self.num_seeds))

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is printed."""
        return self.options.quiet

    def runs(self, stream: str) -> PaperRuns:
        """Return the runs with requests drawn by a stream."""
        return PaperRuns(self.parts, stream, self.options.overwrite)

    def print(self, lines: Sequence[str]) -> None:
        """Print lines, unless the job is quiet."""
        if not self.is_quiet:
            print("\n".join(lines))


def job_of(record: PaperRecord, options: RecordOptions) -> PaperJob:
    """Return the work that the options ask for; refuse folders that cannot be written."""
    output = Path(options.output or record.output)
    parts = output / "parts" if options.parts is None else Path(options.parts)
    for folder in (output, parts):
        cli.check_writable(folder, is_folder=True)
    return PaperJob(record, options, _chosen(record, options.rows), output, parts)


def _chosen(record: PaperRecord, rows: str | None) -> tuple[AnyClaim, ...]:
    if rows is None:
        return record.claims
    wanted = [row.strip() for row in rows.split(",")]
    known = list(dict.fromkeys(claim.row for claim in record.claims))
    for row in wanted:
        if row not in known:
            raise ConfigError(
                f"--rows: the record has no row {row!r}; it has {', '.join(known)}"
                f"{closest(row, known)}"
            )
    return tuple(claim for claim in record.claims if claim.row in wanted)


def reproduce_record(record: PaperRecord, options: RecordOptions) -> int:
    """Make what the options ask for of a record; return the exit code."""
    job = job_of(record, options)
    if options.plan:
        plan(job)
        return 0
    asks = [
        SettingsAsk(job.runs(stream), settings, seeds, record.measurement)
        for stream, seeds, settings in _wanted(job)
    ]
    if options.part is not None:
        return make_paper_part(options, options.part, asks, options.overwrite)
    take_joined(options, job.output, asks)
    start = time.monotonic()
    try:
        published(job)
        if job.num_seeds:
            many(job)
        if options.figures:
            compute_data(job)
    except KeyboardInterrupt:
        words = f"{job.parts} has the settings that were done; the same command goes on there"
        cli.say(record.package, words)
        raise
    if not options.no_figures:
        draw(job)
    job.print([f"Done in {elapsed(start)}."])
    return 0
