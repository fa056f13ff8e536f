"""A prediction held against measured latencies: of a run by request, or of the figures that a file states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.calibrate import settings
from blis_jax.calibrate.formats.contract import Load, Summary, at, number
from blis_jax.calibrate.intervals.posterior import Posterior
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.calibrate.simulated import Simulator
from blis_jax.calibrate.validation import LATENCIES, ErrorRow, errors, figures, table
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.files import input_files

KIND = "prediction"
MOST_APART = 0.25  # a mean of ratios may differ from the ratio of means by so much


@dataclass(frozen=True)
class Prediction:
    """Errors of a prediction for which nothing was fitted to this run."""

    predictor: str
    errors: tuple[ErrorRow, ...]
    remarks: tuple[str, ...]

    def text(self) -> str:
        """What the command prints."""
        return f"{self.predictor}\n\n{table(self.errors)}"

    def document(self) -> dict[str, Any]:
        """The prediction as plain data."""
        rows = [row.document() for row in self.errors if row.is_there]
        return {
            "kind": KIND,
            "predictor": self.predictor,
            "errors": rows,
            "remarks": list(self.remarks),
        }


def by_fit(run: MeasuredRun, fit: Posterior, given: Mapping[str, Any], trace: str) -> Prediction:
    """The requests of a run simulated with the coefficients of a fit to another run.

    Where neither `given` nor the run's files say how the server was set, it is the fit's.
    """
    known = settings.completed(run.settings, fit.cluster)
    config = ClusterConfig(
        **settings.cluster_values(known, {**settings.routing_of(fit.cluster), **given}),
        **settings.AS_VLLM,
    )
    found = Simulator(run, config, fit.terms, dict(fit.fixed))(fit.values)
    everything, intervals = np.ones(len(run), bool), None
    if fit.predictive is not None:
        simulator = Simulator(run, config, fit.predictive.terms, dict(fit.fixed))
        intervals = fit.predictive.intervals(simulator, run, everything)
    rows = errors(run, found.ttft_us, found.e2e_us, everything, "all", intervals)
    return Prediction(
        f"{trace}: {len(run)} requests, predicted with the coefficients of {fit.source}; nothing is fitted.",
        tuple(rows),
        (*run.notes, *settings.silent(known, given, run.notes)),
    )


def by_run(measured: MeasuredRun | Summary, results: Path, trace: str) -> Prediction:
    """Figures of a simulated run beside those that were measured."""
    simulated, remarks = _simulated(results)
    if isinstance(measured, Summary):
        real, kind = measured.figures, f"figures of {measured.tool}"
        remarks += _chunks(measured)
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


def _chunks(measured: Summary) -> list[str]:
    """A remark where the stated TPOT is not that of the other means: some clients divide by chunks."""
    ttft, tpot, e2e = (measured.figures.get((name, "mean"), math.nan) for name in LATENCIES)
    expected = (e2e - ttft) / (measured.load.output_tokens - 1.0)
    if not abs(tpot / expected - 1.0) > MOST_APART:
        return []
    return [
        f"the stated mean TPOT is {tpot:.1f} ms, but (E2E − TTFT) ÷ (output tokens − 1) of the means is "
        f"{expected:.1f} ms: the client may count chunks in place of tokens; trust E2E and TTFT"
    ]


def _simulated(path: Path) -> tuple[dict[tuple[str, str], float], list[str]]:
    """The figures of a result of blis_jax.run, and what is left out of them."""
    document = input_files.read_json(path, "a result that blis_jax.run wrote with --results-path")
    requests = at(document, "requests")
    if not isinstance(requests, list) or not requests:
        raise ConfigError(
            f"--predicted: {path} has no simulated requests; give a result that blis_jax.run wrote with "
            "--results-path"
        )
    ttft, e2e, output = (
        np.array([number(at(one, name), f"{path}: {name}") for one in requests])
        for name in ("ttft_ms", "e2e_ms", "num_decode_tokens")
    )
    is_done = e2e > 0
    left = int(np.sum(~is_done))
    remarks = [f"{left} simulated requests have no end and are left out"] if left else []
    return figures(1e3 * ttft[is_done], 1e3 * e2e[is_done], output[is_done]), remarks


def how_to_predict(load: Load) -> str:
    """The command that makes a prediction of what a client sent, as far as its file says that."""
    flags = {
        "--rate": load.rate_per_s,
        "--num-requests": load.num_requests,
        "--prompt-tokens": load.input_tokens,
        "--output-tokens": load.output_tokens,
    }
    whole = [
        f"{flag} {value:g}" if flag == "--rate" else f"{flag} {value:.0f}"
        for flag, value in flags.items()
        if math.isfinite(value)
    ]
    words = " ".join(["blis-jax run --workload distribution", *whole, "--results-path FILE"])
    return f"to hold a simulation against the figures, give --predicted FILE, made for instance by {words}"
