"""`python -m papers.strategy_evolution`: every row of the scheduling record again, and its figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.errors import ConfigError, closest

if TYPE_CHECKING:
    from papers.record.claims import AnyClaim
    from papers.record.quantities import Samples
    from papers.record.runs import PaperRuns
    from papers.record.settings import RunSetting
    from papers.record.tables import Record

NAME = "papers.strategy_evolution"
FOLDER = "out/strategy_evolution"
LEAST_SEEDS, MOST_SEEDS = 2, 100_000
FIGURE_SEEDS = 200

_DESCRIPTION = """\
Compute every claim of the scheduling record on its own seeds and requests and print it beside the
published number; with --seeds also on many seeds, with intervals; then draw the figures. Runs
are kept in OUTPUT/parts as each setting ends, so a command that was stopped goes on where it was.
"""
_EXAMPLES = """\
examples:
  every row on the published seeds, and the figures from the data that come with the package:
    %(prog)s

  which claims survive on a thousand seeds:
    %(prog)s --seeds 1000

  what that would simulate, and about how long:
    %(prog)s --seeds 1000 --plan

  the figures' data computed again, then the figures:
    %(prog)s --figures

  one figure from saved data:
    python -m papers.strategy_evolution.figures.rate_sweep
"""
_WHAT = (
    Flag("rows", str, None, "A,B,…", "only these rows of the record, such as 5,8-opt"),
    Flag(
        "seeds",
        cli.whole,
        None,
        "N",
        "also compute every claim on N seeds, with intervals",
    ),
    Flag(
        "rng",
        cli.one_of("reference", "jax"),
        "jax",
        "NAME",
        "who draws the requests of the N seeds: jax (seeds 0 to N-1), or reference (42 to 41+N)",
    ),
    Flag("figure-seeds", cli.whole, FIGURE_SEEDS, "N", "seeds of the figures' data"),
    Flag("output", str, FOLDER, "FOLDER", "where results, data, figures and parts go"),
    Flag("parts", str, None, "FOLDER", "where runs are kept (default: OUTPUT/parts)"),
)
_SWITCHES = {
    "figures": "compute the data of the figures, then draw them",
    "no-figures": "draw no figures",
    "resume": "use runs that are kept already; this is the default",
    "overwrite": "simulate again what is kept already",
    "plan": "say what would be simulated and about how long it takes, and stop",
    "quiet": "print nothing but errors",
    "no-cache": "compile again instead of using programs kept from earlier runs",
}


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_flags("what", _WHAT)
    parser.add_switches("switches", _SWITCHES)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _reproduce, arguments)


@dataclass(frozen=True)
class _Job:
    claims: tuple[AnyClaim, ...]
    num_seeds: int
    stream: str
    figure_seeds: int
    output: Path
    parts: Path
    switches: frozenset[str]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The many seeds."""
        first = 42 if self.stream == "reference" else 0
        return tuple(range(first, first + self.num_seeds))

    def runs(self, stream: str) -> PaperRuns:
        """Runs with requests drawn by a stream."""
        from papers.record.runs import PaperRuns

        return PaperRuns(self.parts, stream, "overwrite" in self.switches)


def _reproduce(arguments: Sequence[str] | None) -> int:
    job = _job(_parser().given(sys.argv[1:] if arguments is None else arguments))
    prepare_backend(use_cache="no_cache" not in job.switches)
    if "plan" in job.switches:
        return _plan(job)
    start = time.monotonic()
    _published(job)
    if job.num_seeds:
        _many(job)
    if "figures" in job.switches:
        _compute_data(job)
    if "no_figures" not in job.switches:
        _draw(job)
    _print(job, [f"Done in {_elapsed(start)}."])
    return 0


def _job(given: dict[str, Any]) -> _Job:
    """The options, checked."""
    contradictions = (("figures", "no_figures"), ("resume", "overwrite"))
    for one, other in contradictions:
        if one in given and other in given:
            words = (name.replace("_", "-") for name in (one, other))
            raise ConfigError("--{} and --{} contradict each other; give one".format(*words))
    for name in ("seeds", "figure_seeds"):
        if name in given and not LEAST_SEEDS <= given[name] <= MOST_SEEDS:
            flag = name.replace("_", "-")
            raise ConfigError(
                f"--{flag} is {given[name]}; allowed is {LEAST_SEEDS} to {MOST_SEEDS}, since an "
                "interval needs two seeds"
            )
    if "rng" in given and "seeds" not in given:
        raise ConfigError("--rng is about the seeds of --seeds; give that too, or leave --rng out")
    output = Path(given.get("output", FOLDER))
    parts = Path(given["parts"]) if "parts" in given else output / "parts"
    for folder in (output, parts):
        cli.check_writable(folder, is_folder=True)
    return _Job(
        _chosen(given.get("rows")),
        given.get("seeds", 0),
        given.get("rng", "jax"),
        given.get("figure_seeds", FIGURE_SEEDS),
        output,
        parts,
        frozenset(given),
    )


def _chosen(rows: str | None) -> tuple[AnyClaim, ...]:
    from papers.record.claims import load_claims

    claims = load_claims()
    if rows is None:
        return claims
    wanted = [row.strip() for row in rows.split(",")]
    known = list(dict.fromkeys(claim.row for claim in claims))
    for row in wanted:
        if row not in known:
            raise ConfigError(
                f"--rows: the record has no row {row!r}; it has {', '.join(known)}"
                f"{closest(row, known)}"
            )
    return tuple(claim for claim in claims if claim.row in wanted)


# --- the two tables -------------------------------------------------------------------------------


def _settings(job: _Job) -> list[RunSetting]:
    from papers.record.settings import named

    return named(name for claim in job.claims for name in claim.settings)


def _published(job: _Job) -> None:
    """The table on the published seeds."""
    from papers.record import tables
    from papers.record.published import EXACT, HOLDS, SEEDS, classified

    samples = _samples(job, "reference", SEEDS)
    records = tables.published_records(classified(job.claims, samples))
    heading = "The scheduling record on its own seeds"
    words = (
        "Every claim of the record beside what this simulator gives with seeds 42, 43 and 44 and the "
        "reference's own requests. `ours` is the mean of the three seeds; `difference` is ours minus "
        f"published. {len(records)} claims. {tables.counts(records, 'class')}."
    )
    _write(job, "published", heading, words, records, records, tables.PUBLISHED_COLUMNS)
    quiet = (EXACT, HOLDS)
    _print(job, tables.printed(records, tables.PUBLISHED_COLUMNS, quiet))
    _print(job, ["", f"{len(records)} claims. {tables.counts(records, 'class')}."])


def _many(job: _Job) -> None:
    """The table on many seeds."""
    from papers.record import tables
    from papers.record.survival import SURVIVES, judged

    samples = _samples(job, job.stream, job.seeds)
    records = tables.survival_records(judged(job.claims, samples))
    readable = tables.with_intervals(records)
    heading = f"Which claims survive on {job.num_seeds} seeds"
    words = _survival_words(job) + f" {len(records)} claims. {tables.counts(records, 'verdict')}."
    name = f"survival_{job.stream}_{job.num_seeds}"
    _write(job, name, heading, words, records, readable, tables.SURVIVAL_COLUMNS)
    _print(job, ["", f"{heading}:", ""])
    _print(job, tables.printed(readable, tables.SURVIVAL_COLUMNS, (SURVIVES,)))
    _print(job, ["", f"{len(records)} claims. {tables.counts(records, 'verdict')}."])


def _survival_words(job: _Job) -> str:
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


def _samples(job: _Job, stream: str, seeds: Sequence[int]) -> Samples:
    from papers.record.measures import scalars

    runs = job.runs(stream)
    settings = _settings(job)
    _announce(job, runs.missing(settings, seeds, scalars()), stream, len(seeds))
    return _shown(job, lambda say: runs.get(settings, seeds, scalars(), say))


def _announce(job: _Job, missing: Sequence[RunSetting], stream: str, num_seeds: int) -> None:
    from papers.record.runs import estimated_s

    if missing and "quiet" not in job.switches:
        cli.say(NAME, _estimate_words(missing, stream, num_seeds, estimated_s(missing, num_seeds)))


def _estimate_words(
    missing: Sequence[RunSetting], stream: str, num_seeds: int, seconds: float
) -> str:
    num_pressed = sum(setting.is_pressed for setting in missing)
    return (
        f"{len(missing)} settings × {num_seeds} seeds ({stream}) to simulate, {num_pressed} of them "
        f"block by block: about {max(seconds / 60, 1):.0f} min on two free cores"
    )


def _shown(job: _Job, work: Any) -> Any:
    """Does some work, and shows how far it is."""
    state: dict[str, progress.Phase] = {}

    def say(done: int, total: int, what: str) -> None:
        if "line" not in state:
            state["line"] = progress.begin("simulating", total, "settings")
        state["line"].show(done, what)

    try:
        return work(say)
    except KeyboardInterrupt:
        cli.say(
            NAME, f"{job.parts} has the settings that were done; the same command goes on there"
        )
        raise
    finally:
        if "line" in state:
            state["line"].clear()


def _write(
    job: _Job,
    name: str,
    heading: str,
    words: str,
    records: Sequence[Record],
    readable: Sequence[Record],
    columns: Sequence[str],
) -> None:
    from blis_jax.files.atomic_write import replacing
    from papers.record.tables import csv_text, markdown_text

    folder = job.output / "results"
    texts = {
        folder / f"{name}.csv": csv_text(records),
        folder / f"{name}.md": markdown_text(heading, words, readable, columns),
    }
    for path, text in texts.items():
        with cli.writing(path), replacing(path) as written:
            written.write_text(text, encoding="utf-8")


# --- figures --------------------------------------------------------------------------------------


def _compute_data(job: _Job) -> None:
    from papers.record.measures import scalars
    from papers.strategy_evolution.figures import data as figure_data

    runs, seeds = job.runs("jax"), tuple(range(job.figure_seeds))
    _announce(job, runs.missing(figure_data.needed(), seeds, scalars()), "jax", len(seeds))
    _shown(
        job,
        lambda say: figure_data.compute(runs, seeds, job.output / "data", say, lambda path: None),
    )


def _draw(job: _Job) -> None:
    """Every figure, from data computed here or from those that come with the package."""
    from papers.strategy_evolution.figures import FIGURES, shipped_data

    computed = job.output / "data"
    data = computed if computed.is_dir() else shipped_data()
    for figure in FIGURES:
        path = job.output / "pictures" / f"{figure.name}.png"
        with cli.writing(path):
            figure.draw(data, path)
    _print(
        job, ["", f"{len(FIGURES)} figures in {job.output / 'pictures'}, from the data in {data}."]
    )


def _plan(job: _Job) -> int:
    """What would be simulated, without doing so."""
    from papers.record.measures import scalars
    from papers.record.published import SEEDS
    from papers.record.runs import estimated_s
    from papers.strategy_evolution.figures import data as figure_data

    wanted: list[tuple[str, tuple[int, ...], list[RunSetting]]] = [
        ("reference", SEEDS, _settings(job))
    ]
    if job.num_seeds:
        wanted.append((job.stream, job.seeds, _settings(job)))
    if "figures" in job.switches:
        wanted.append(("jax", tuple(range(job.figure_seeds)), figure_data.needed()))
    for stream, seeds, settings in wanted:
        missing = job.runs(stream).missing(settings, seeds, scalars())
        seconds = estimated_s(missing, len(seeds))
        print(
            _estimate_words(missing, stream, len(seeds), seconds)
            if missing
            else f"{len(settings)} settings × {len(seeds)} seeds ({stream}): all kept in {job.parts}"
        )
    return 0


def _elapsed(start: float) -> str:
    from papers.record.runs import elapsed

    return elapsed(start)


def _print(job: _Job, lines: Sequence[str]) -> None:
    if "quiet" not in job.switches:
        print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
