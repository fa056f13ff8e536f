"""A calibration and a prediction in words and as a picture: coefficients, tables of errors, latencies side by side.

A prediction is compared with measured latencies: those of a run's requests, or the figures that a file states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.calibrate.calibration import UNITS, Calibration, Simulator
from blis_jax.calibrate.fit import Fit
from blis_jax.calibrate.posterior import Posterior
from blis_jax.calibrate.uncertainty import LEVEL
from blis_jax.calibrate.validation import (
    HELD_OUT,
    NAIVE,
    ErrorRow,
    errors,
    errors_table,
    figures,
)
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import finite, plain
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Table
from blis_jax.reports.pictures import ACROSS, Axis, Guide, Mark, Panel, Picture, Series, Style
from blis_jax.reports.style import GREY, RED
from blis_jax.reports.words import cluster_line
from blis_jax.traces.measured import run as measured_run
from blis_jax.traces.measured.run import LATENCIES, MeasuredRun, at, tpot_of
from blis_jax.traces.measured.sent import Load, Summary, number


def findings_of(calibration: Calibration) -> Findings:
    """Return the verdict, the coefficients, the errors, and the picture of latencies."""
    sure, price = _head(calibration)
    answer = Answer.of(
        "Do step times that are fitted to the measured run describe it?",
        calibration.verdict.words,
        sure,
        price,
        "blis-jax compare --trace TRACE one=vllm:num_instances=1 two=vllm:num_instances=2 --coefficients-from FIT asks "
        "what a second instance would do; calibrate OTHER --coefficients-from FIT gives the errors on another run.",
        _server(calibration),
    )
    tables = (_coefficients(calibration), errors_table(calibration.errors))
    return Findings(
        answer,
        (*tables, *_held_out(calibration)),
        (picture(calibration),),
    )


def _server(calibration: Calibration) -> str:
    """Return the answer's first line: model, GPU and TP of the measured server, as far as they are stated."""
    stated = calibration.run.settings
    config = calibration.config.replace(
        model=stated.model or "a model without a name", hardware=stated.gpu or "", tp=stated.tp or 1
    )
    return cluster_line({"": config})


def _head(calibration: Calibration) -> list[str]:
    run, config, fit = calibration.run, calibration.config, calibration.fit
    fitted = calibration.plan.num_fitted or len(run)
    memory = (
        f"{config.total_kv_blocks} KV blocks"
        if config.total_kv_blocks < 1_000_000
        else "KV memory never full"
    )
    measured = int(np.sum(np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)))
    of_them = "" if measured == len(run) else f", {measured} of them measured"
    return [
        f"{len(run)} requests{of_them}, fitted on the first {fitted}; {memory}; profile {config.profile}.",
        f"{fit.num_simulations} simulations; {_ends(fit)}.",
    ]


def _ends(fit: Fit) -> str:
    """Return a sentence on how many starts of the search end within 2 % of the best fit's cost."""
    count = len(fit.start_costs)
    close = sum(cost < 1.02 * fit.cost for cost in fit.start_costs)
    if not close:
        ended = f"none of {count} starts ended" if count > 1 else "the one start did not end"
        return f"{ended} at the best fit, found while the intervals were explored: more --starts may find a better one"
    if count == 1:
        return "one start was made, so whether others lead to the same fit is not known: --starts 4 tells"
    if close == count:
        return f"all {count} starts end at the same fit"
    return f"{close} of {count} starts end at the best fit, and the others at worse ones"


def _coefficients(calibration: Calibration) -> Table:
    known = calibration.uncertainty
    rows = [
        Row((term, Quantity(finite(value), finite(low), finite(high)), UNITS[term], mark))
        for term, value, (low, high), mark in zip(
            calibration.plan.terms, calibration.fit.values, known.intervals,
            ("" if is_known else "not identifiable" for is_known in known.is_identified), strict=True,
        )
    ]  # fmt: skip
    columns = ("term", f"value [{100 * LEVEL:g} %]", "unit", "note")
    return Table(columns, tuple(rows), "Coefficients", name="coefficients")


def _held_out(calibration: Calibration) -> tuple[Remarks, ...]:
    """Return remarks that explain the errors on held-out requests, and the naive rows of the long table."""
    if not calibration.by_request:
        return ()
    pairs = ", ".join(
        f"{row.latency.partition('_')[0].upper()} {row.simulated:.1f} ms ({row.training_mean:.1f})"
        for row in calibration.by_request
    )
    has_intervals = calibration.predictive is not None
    lines = (
        f"{HELD_OUT}: the same episode as the fitted requests, so the same server, hour and mix; "
        "--coefficients-from gives the errors on another run.",
        *[f"In brackets: where the measured figure should lie, {100 * LEVEL:g} %."] * has_intervals,
        f"Mean absolute error of a request held out, in brackets if all were given the training mean: {pairs}.",
    )
    without = f"{NAIVE}: each figure of requests held out, predicted by that of the fitted ones without a simulator."
    return Remarks(lines, is_brief=True), Remarks((without,))


# --- a calibration as a picture: measured and simulated latencies of every request, side by side --


MEASURED, SIMULATED = Style(GREY, ".", size=5.0), Style(RED, "x", size=4.0)


def picture(calibration: Calibration) -> Picture:
    """Return TTFT, TPOT and E2E over arrival time; requests right of the line were held out of the fit."""
    run, simulation = calibration.run, calibration.latencies
    tpot_us = tpot_of(simulation.ttft_us, simulation.e2e_us, run.rows.output_len)
    arrival = plain(run.rows.arrival_us / 1e6)
    num_fitted = calibration.plan.num_fitted or len(run)
    panels = []
    for label, real, simulated in (
        ("TTFT (s)", run.ttft_us / 1e6, simulation.ttft_us / 1e6),
        ("TPOT (ms)", run.tpot_us / 1e3, tpot_us / 1e3),
        ("E2E (s)", run.e2e_us / 1e6, simulation.e2e_us / 1e6),
    ):
        marks: list[Mark] = [
            Series(arrival, plain(real), MEASURED, "measured"),
            Series(arrival, plain(simulated), SIMULATED, "simulated"),
        ]
        if num_fitted < len(run):
            split = (arrival[num_fitted - 1] + arrival[num_fitted]) / 2
            marks.append(Guide(split, style=ACROSS, label="right of it: held out of the fit"))
        x = Axis("arrival (s)" if label.startswith("E2E") else "")
        panels.append([Panel(marks, x, Axis(label))])
    return Picture(
        f"{run.settings.model or 'The measured run'}: measured and simulated latencies",
        "One point a request, by its arrival; simulated with the fitted coefficients.",
        panels, [2.2] * len(panels), shares_x="all", name="latencies",
    )  # fmt: skip


KIND = "prediction"
MOST_APART = 0.25  # a mean of ratios may differ from the ratio of means by so much


@dataclass(frozen=True)
class Prediction:
    """Errors of a prediction made without a fit to the run itself."""

    predictor: str
    errors: tuple[ErrorRow, ...]
    remarks: tuple[str, ...]

    def findings(self) -> Findings:
        """Return the errors as an answer and a table."""
        means = [row for row in self.errors if row.statistic == "mean" and row.is_there]
        figures = ", ".join(
            f"{row.metric.partition('_')[0].upper()} {100 * row.error:+.1f} %" for row in means
        )
        answer = Answer.of(
            "How far is the prediction from what was measured?",
            f"errors of the means: {figures or 'there is no mean to compare'}.",
            self.predictor,
            "no fit was made.",
            "the table has every latency; --output FILE keeps it.",
        )
        return Findings(answer, (errors_table(self.errors),))

    def document(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        rows = [row.document() for row in self.errors if row.is_there]
        return {
            "kind": KIND,
            "predictor": self.predictor,
            "errors": rows,
            "remarks": list(self.remarks),
        }


def by_fit(run: MeasuredRun, fit: Posterior, server: Mapping[str, Any], trace: str) -> Prediction:
    """Return the requests of a run simulated with the coefficients of a fit to another run.

    Settings of the server come from `server`, else from the run's files, else from the fit.
    """
    known = measured_run.completed(run.settings, fit.cluster)
    config = ClusterConfig(
        **measured_run.cluster_values(known, {**measured_run.routing_of(fit.cluster), **server}),
        **measured_run.AS_VLLM,
    )
    latencies = Simulator(run, config, fit.terms, dict(fit.fixed))(fit.values)
    everything, intervals = np.ones(len(run), bool), None
    if fit.predictive is not None:
        simulator = Simulator(run, config, fit.predictive.terms, dict(fit.fixed))
        intervals = fit.predictive.intervals(simulator, run, everything)
    rows = errors(run, latencies.ttft_us, latencies.e2e_us, everything, "all", intervals)
    return Prediction(
        f"{trace}: {len(run)} requests, predicted with the coefficients of {fit.source}; nothing is fitted.",
        tuple(rows),
        (*run.notes, *measured_run.silent(known, server, run.notes)),
    )


def by_run(measured: MeasuredRun | Summary, results: Path, trace: str) -> Prediction:
    """Compare the figures of a simulated run with those of a measured run.

    Raises:
        ConfigError: the measured run states no latency.
    """
    simulated, remarks, lengths = _simulated(results)
    remarks += _other_requests(measured, lengths)
    if isinstance(measured, Summary):
        real, kind = measured.figures, f"figures of {measured.tool}"
        remarks += [*_missing(measured), *_chunks(measured), *measured.remarks]
    else:
        real = figures(measured.ttft_us, measured.e2e_us, measured.rows.output_len)
        remarks, kind = [*measured.notes, *remarks], f"{len(measured)} requests"
    if not real:
        raise ConfigError(
            f"{trace} states no TTFT, TPOT or E2E; measure again with a streaming client"
        )
    rows = [
        ErrorRow("all", *key, real.get(key, math.nan), value) for key, value in simulated.items()
    ]
    return Prediction(
        f"{trace}: {kind} beside the simulation in {results}.", tuple(rows), tuple(remarks)
    )


def _missing(measured: Summary) -> list[str]:
    """Return a remark on latencies for which the file states no figure, or 0."""
    names = {name for name, _ in measured.figures}
    lacking = [name.partition("_")[0].upper() for name in LATENCIES if name not in names]
    return [f"the file has no {' and no '.join(lacking)}, or states 0 for it"] if lacking else []


def _chunks(measured: Summary) -> list[str]:
    """Return a remark if the stated mean TPOT contradicts mean TTFT and E2E: some clients divide by chunks."""
    ttft, tpot, e2e = (measured.figures.get((name, "mean"), math.nan) for name in LATENCIES)
    expected = (e2e - ttft) / (measured.load.output_tokens - 1.0)
    if not expected > 0 or not abs(tpot / expected - 1.0) > MOST_APART:
        return []
    return [
        f"the stated mean TPOT is {tpot:.1f} ms, but (E2E − TTFT) ÷ (output tokens − 1) of the means is "
        f"{expected:.1f} ms: the client may count chunks in place of tokens; trust E2E and TTFT"
    ]


OTHER_LENGTHS = 0.2  # of a mean length: drawn lengths differ by less


def _other_requests(measured: MeasuredRun | Summary, simulated: Sequence[float]) -> list[str]:
    """Return a remark if mean prompt or output lengths of the simulated and the measured requests differ."""
    if isinstance(measured, Summary):
        lengths = [measured.load.input_tokens, measured.load.output_tokens]
    else:
        lengths = [
            float(np.mean(each)) for each in (measured.rows.input_len, measured.rows.output_len)
        ]
    if not any(
        abs(ours - real) > OTHER_LENGTHS * real
        for ours, real in zip(simulated, lengths, strict=True)
    ):
        return []
    real, ours = (
        " and ".join(f"{tokens:,.0f}" for tokens in each) for each in (lengths, simulated)
    )
    return [
        f"these are not the same requests: prompts and outputs have {real} tokens on average as measured, {ours} as "
        "simulated, so the errors are not the simulator's"
    ]


def _simulated(path: Path) -> tuple[dict[tuple[str, str], float], list[str], list[float]]:
    """Return the figures of a result of `blis-jax run`, remarks on requests left out, and mean lengths in tokens."""
    document = input_files.read_json(path, "a result that blis-jax run wrote with --results-path")
    requests = at(document, "requests")
    if not isinstance(requests, list) or not requests:
        raise ConfigError(
            f"--predicted: {path} has no simulated requests; give a result that blis-jax run wrote with "
            "--results-path"
        )
    ttft, e2e, prompt, output = (
        np.array([number(at(request, name), f"{path}: {name}") for request in requests])
        for name in ("ttft_ms", "e2e_ms", "num_prefill_tokens", "num_decode_tokens")
    )
    is_done = e2e > 0
    left = int(np.sum(~is_done))
    remarks = [f"{left} simulated requests have no end and are left out"] if left else []
    lengths = [float(np.mean(each)) for each in (prompt, output)]
    return figures(1e3 * ttft[is_done], 1e3 * e2e[is_done], output[is_done]), remarks, lengths


# of a mean length: a wider normal law would be cut at 1 token and move the mean
LARGEST_SPREAD = 0.4
ALL_AT_ONCE_PER_S = 100_000


def how_to_predict(load: Load) -> str:
    """Return the command that simulates the load of a client, with all options that its file states."""
    words = ["blis-jax run --workload distribution"]
    is_paced = math.isfinite(load.max_open) or not math.isnan(load.rate_per_s)
    if math.isfinite(load.max_open):
        words.append(f"--profile blis-2026-08 --concurrency {load.max_open:.0f}")
    elif is_paced:
        words.append(f"--rate {min(load.rate_per_s, ALL_AT_ONCE_PER_S):g}")
    else:
        words.append("--rate RPS")
    if math.isfinite(load.num_requests):
        words.append(f"--num-requests {load.num_requests:.0f}")
    for kind, mean, stdev in (
        ("prompt", load.input_tokens, load.input_stdev),
        ("output", load.output_tokens, load.output_stdev),
    ):
        if math.isfinite(mean):
            spread = 1 if math.isnan(stdev) else min(stdev, LARGEST_SPREAD * mean)
            flag = f"--{kind}-tokens"
            words.append(f"{flag} {mean:.0f} {flag}-stdev {max(spread, 1):.0f} {flag}-min 1")
    command = " ".join([*words, "--results-path FILE"])
    unsaid = "" if is_paced else " with the rate that the client sent, which its file does not say"
    is_spaced = math.isnan(load.max_open) and not load.rate_per_s > ALL_AT_ONCE_PER_S
    chance = (
        "; --rate spaces requests evenly, and most clients draw their gaps, which makes longer queues: a workload file "
        "with arrival: {process: poisson} does so"
    )
    return (
        "to hold a simulation against the figures, give --predicted FILE, made for instance by "
        f"{command}{unsaid}{chance * is_spaced}"
    )
