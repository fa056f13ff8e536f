"""`blis-jax papers step_law`: which terms the law of a step's time lacks, by steps that servers measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blis_jax.backend import prepare_backend
from blis_jax.calibrate.posterior import load
from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.options import CommandOptions, option
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import SIZED
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import table_text
from papers.step_law import engines
from papers.step_law.law import (
    TERMS,
    LinearLaw,
    MeasuredSteps,
    by_quarters,
    change,
    fitted,
    predicted_us,
    read_steps,
)

NAME = "papers.step_law"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "real_serving_runs"
_DESCRIPTION = """\
Read engine steps that vLLM servers measured, fit the linear law of BLIS's blackbox (a constant, new
prompt tokens, requests in decode) to the time from one step's start to the next, and print by residuals
and by errors out of sample which terms it lacks: context, attention of prompts, numbers of requests,
sizes of CUDA graphs. Beside it, what trained-physics and roofline say with nothing fitted.
With --engines, read the steps of today's engines, and print how far the step law is off on steps and on
deployments that were held out, beside a straight line and the laws from sizes.
With --cost, simulate with a fitted law and with a straight line in turns, and print what each costs.
"""
_EXAMPLES = """\
examples:
  the steps beside the checkout:
    %(prog)s

  others, in a file with the same columns:
    %(prog)s --steps steps.parquet

  the step law on deployments of today's models, from the table beside the checkout:
    %(prog)s --engines ../shared/data/engine_steps/steps.parquet

  what a simulated step costs with a law that blis-jax calibrate has fitted, beside a straight line:
    %(prog)s --cost fit.json
"""
SEEDS, TURNS = 32, 20  # of --cost


class StepLawOptions(
    CommandOptions, title="what", command=NAME, description=_DESCRIPTION, examples=_EXAMPLES
):
    """Options of the command."""

    steps: Path | None = option(
        Path, None, "FILE", "Parquet file of measured steps (default: shared/data beside the checkout)",
    )  # fmt: skip
    engines: Path | None = option(
        Path, None, "FILE", "the step law on the engines of a table that blis_jax.calibrate reads, in place of these",
    )  # fmt: skip
    cost: Path | None = option(
        Path, None, "FIT", "what steps cost with a result of blis-jax calibrate (FILE or FILE:RUN), in place of these",
    )  # fmt: skip


@StepLawOptions.as_main
def main(options: StepLawOptions) -> int:
    """Run the command; return its exit code."""
    given = [name for name in ("steps", "engines", "cost") if getattr(options, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} has no meaning beside --{given[1]}; leave one of them out")
    prepare_backend()
    if options.engines is not None:
        return _engines(options.engines)
    if options.cost is not None:
        return _cost(options.cost)
    runs = read_steps(options.steps or DATA / "vllm_steps.parquet")
    laws = {run.name: _laws(run) for run in runs}
    tables = (_periods(runs), _terms(runs, laws), _residuals(runs, laws), _sized(runs))
    errors = [
        (laws[run.name]["base"].errors_us.mean(), laws[run.name]["all"].errors_us.mean())
        for run in runs
    ]
    base, whole = (float(np.median(part)) for part in zip(*errors, strict=True))
    render.show_answer(
        Answer.of(
            "Which terms does a step of a real server take, and how much do they explain?",
            f"the base law is {base:.0f} µs off a step, all terms together {whole:.0f} µs: medians of the runs.",
            f"errors out of sample, of {len(runs)} runs; * marks a change that is told from 0.",
            f"nothing was simulated: {sum(len(run.period_us) for run in runs)} measured steps.",
            "the second table says which term helps on which run.",
        ),
        *tables,
    )
    return 0


def _engines(path: Path) -> int:
    """Print the tables of the step law on today's engines."""
    tables, runs = engines.tables(path)
    fits = [run.fit for run in runs]
    good = sum(
        fit.every_second["decode"].median <= engines.DECODE_BAR
        and fit.every_second["prefill"].median <= engines.PREFILL_BAR
        for fit in fits
    )
    render.show_answer(
        Answer.of(
            "How near is the step law to the steps of today's engines?",
            f"with every second step held out it is within 1 % of decode steps and 8 % of prefill steps in {good} of "
            f"{len(fits)} deployments.",
            "medians of absolute errors on steps that the fit had not seen; the tables have the rest.",
            f"nothing was simulated: {sum(fit.num_steps for fit in fits)} measured steps.",
            "the last table says what a fit to other deployments is worth.",
        ),
        *tables,
    )
    return 0


def _cost(path: Path) -> int:
    """Print what a simulated step costs with a fitted law and with a straight line."""
    line = ClusterConfig(
        num_instances=8, routing_policy="weighted", long_prefill_token_threshold=256
    )
    law = load(path).configured(line)
    table, ratio = engines.replay.costs(
        {"straight line": line, law.latency_model: law}, SEEDS, TURNS
    )
    render.show_answer(
        Answer.of(
            "What does a simulated step cost with this law?",
            f"{ratio:.2f} times what it costs with a straight line, in CPU time.",
            f"a median of {TURNS} turns; the table has its quartiles.",
            f"{2 * SEEDS * (1 + TURNS)} runs of mixed on eight instances.",
            "the table has whole runs too; what a law costs more is in its steps with decodes alone.",
        ),
        table,
    )
    return 0


def _laws(run: MeasuredSteps) -> dict[str, LinearLaw]:
    """Return the base law, the base with each single term, all terms, and all terms but each single one."""
    laws = {"base": fitted(run, ()), "all": fitted(run, tuple(TERMS))}
    for term in TERMS:
        laws[f"with {term}"] = fitted(run, (term,))
        laws[f"without {term}"] = fitted(
            run, tuple(other_term for other_term in TERMS if other_term != term)
        )
    return laws


def _title(run: MeasuredSteps) -> str:
    return f"{run.model}, TP {run.tp}, {run.workload}"


def _periods(runs: Sequence[MeasuredSteps]) -> str:
    """Return the table of what was measured."""
    head = ["run", "steps in the file", "with their next", "left out", "`duration_us`, median"]
    head += ["start to start, median µs", "with a prompt, %", "new tokens in these, median"]
    rows = []
    for run in runs:
        has_prompt = run.prefills > 0
        counts = (run.num_recorded, len(run.period_us), run.num_left_out)
        medians = [np.median(run.duration_us), np.median(run.period_us)]
        medians += [100 * has_prompt.mean(), np.median(run.new_tokens[has_prompt])]
        rows.append(
            [_title(run), *(str(count) for count in counts), *(f"{m:.0f}" for m in medians)]
        )
    return "What was measured:\n\n" + table_text(head, rows)


def _terms(runs: Sequence[MeasuredSteps], laws: dict[str, dict[str, LinearLaw]]) -> str:
    """Return the table of the laws' errors, and of what each term changes."""
    head = ["run", "law", "µs per unit", "mean error, µs", "added to the base, %"]
    head += ["left out of all, %"]
    rows = []
    num_intervals = 2 * len(runs) * len(TERMS)
    for run in runs:
        laws_of_run = laws[run.name]
        base, whole = laws_of_run["base"], laws_of_run["all"]
        units = ", ".join(f"{coefficient:.3g}" for coefficient in base.coefficients)
        rows.append([_title(run), "base", units, f"{base.errors_us.mean():.0f}", "", ""])
        for term in TERMS:
            added, left = laws_of_run[f"with {term}"], laws_of_run[f"without {term}"]
            cells = [f"{added.coefficients[-1]:.3g}", f"{added.errors_us.mean():.0f}"]
            cells += [_change(base, added, num_intervals), _change(whole, left, num_intervals)]
            rows.append(["", term, *cells])
        rows.append(["", "all terms", "", f"{whole.errors_us.mean():.0f}", "", ""])
    words = (
        "Errors out of sample, and how a term changes them [95 % for all intervals together]:\n\n"
    )
    return words + table_text(head, rows)


def _change(before: LinearLaw, after: LinearLaw, num_intervals: int) -> str:
    interval = change(before, after, num_intervals)
    clear = " *" if not interval.holds(0.0) else ""
    text = f"{interval.mean:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]{clear}"
    return text.replace("-", "−")


def _residuals(runs: Sequence[MeasuredSteps], laws: dict[str, dict[str, LinearLaw]]) -> str:
    """Return the table of the base law's mean residuals by quarters."""
    head = ["run", "steps in order of", "first quarter", "second", "third", "last"]
    rows = []
    for run in runs:
        residual = laws[run.name]["base"].residual_us
        for place, (term, column) in enumerate(TERMS.items()):
            values = [
                f"{percent:+.0f}".replace("-", "−")
                for percent in by_quarters(column(run), residual)
            ]
            rows.append([_title(run) if place == 0 else "", term, *values])
    return "Mean residual of the base law, measured less fitted, µs:\n\n" + table_text(head, rows)


def _sized(runs: Sequence[MeasuredSteps]) -> str:
    """Return the table of the errors of laws from sizes, with nothing fitted."""
    head = ["run", "law", "mean error, µs", "bias, %", "error without bias, µs"]
    rows = []
    for run in runs:
        for name in SIZED:
            times = predicted_us(run, name)
            if times is None:
                continue
            over = times - run.period_us
            rest = np.abs(over - over.mean()).mean()
            bias = f"{100 * over.mean() / run.period_us.mean():+.1f}".replace("-", "−")
            rows.append([_title(run), name, f"{np.abs(over).mean():.0f}", bias, f"{rest:.0f}"])
    return "Laws from sizes, nothing fitted:\n\n" + table_text(head, rows)


if __name__ == "__main__":
    sys.exit(main())
