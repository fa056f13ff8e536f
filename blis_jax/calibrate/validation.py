"""Errors of simulated against measured latencies: mean, P50, P90 and P99 of TTFT, TPOT and E2E."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.files.atomic_write import finite
from blis_jax.reports.findings import Quantity, Row, Table
from blis_jax.traces.measured.run import LATENCIES, STATISTICS, MeasuredRun, tpot_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

HELD_OUT, NAIVE = "held out", "naive"  # parts


class ErrorRow(NamedTuple):
    """One statistic of one latency over some requests."""

    part: str
    metric: str
    statistic: str
    measured: float
    simulated: float
    low: float = math.nan  # of the interval of the measured one, where there is any
    high: float = math.nan

    @property
    def is_there(self) -> bool:
        """Return whether both a simulated and a measured value exist, so that there is an error."""
        return bool(np.isfinite(self.simulated) and self.measured > 0)

    @property
    def error(self) -> float:
        """Return the relative error of the simulation; NaN where one of the two is missing."""
        return self.simulated / self.measured - 1.0 if self.is_there else float("nan")

    def document(self) -> dict[str, Any]:
        """Return the row as plain data, without an interval where there is none."""
        has_interval = math.isfinite(self.low) and math.isfinite(self.high)
        left_out = () if has_interval else ("low", "high")
        row = {key: value for key, value in self._asdict().items() if key not in left_out}
        return {**row, "error": self.error}


def errors(
    run: MeasuredRun,
    ttft_us: Float[np.ndarray, " request"],
    e2e_us: Float[np.ndarray, " request"],
    is_part: Bool[np.ndarray, " request"],
    part: str,
    intervals: Mapping[tuple[str, str], tuple[float, float]] | None = None,
) -> list[ErrorRow]:
    """Return an error row for every statistic of every latency, over the measured requests in `is_part`."""
    used = is_part & np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)
    output_len = run.rows.output_len[used]
    measured = figures(run.ttft_us[used], run.e2e_us[used], output_len)
    simulated = figures(ttft_us[used], e2e_us[used], output_len)
    none = (math.nan, math.nan)
    return [
        ErrorRow(part, *key, value, simulated[key], *(intervals or {}).get(key, none))
        for key, value in measured.items()
    ]


MOST_OFF = 0.2  # a fit whose means are further off than this does not describe the run


class FitVerdict(NamedTuple):
    """The verdict on whether a fit describes the run to which it was fitted."""

    describes: bool
    words: str

    @classmethod
    def of(cls, rows: Sequence[ErrorRow]) -> FitVerdict:
        """Judge the means of TTFT, TPOT and E2E over all requests; name the P99 that is furthest off beside them."""
        mean, tail = (_furthest(rows, statistic) for statistic in ("mean", "p99"))
        if mean is None:
            return cls(False, "the run has no mean latency to hold the fit against.")
        if abs(mean.error) > MOST_OFF:
            words = f"the fit does NOT describe its run: mean {_figure(mean)}. Do not predict with it; see the notes."
            return cls(False, words)
        of_means = f"the mean that is furthest off is {_figure(mean)}"
        if tail is None:
            return cls(True, f"the fit describes its run: {of_means}.")
        if abs(tail.error) > MOST_OFF:
            words = f"the fit describes the means of its run, not the tail: P99 {_figure(tail)}; {of_means}."
            return cls(True, words)
        return cls(True, f"the fit describes its run: {of_means}, the P99 {_figure(tail)}.")


def _furthest(rows: Sequence[ErrorRow], statistic: str) -> ErrorRow | None:
    known = [
        row for row in rows if (row.part, row.statistic) == ("all", statistic) and row.is_there
    ]
    return max(known, key=lambda row: abs(row.error), default=None)


def _figure(row: ErrorRow) -> str:
    return f"{row.metric.partition('_')[0].upper()} {100 * row.error:+.1f} %"


FIRST_SHARE, MOST_MISSES, SLOWER = 0.1, 0.5, 1.5  # of a cold start, see `cold_start`


def cold_start(run: MeasuredRun, ttft_us: Float[np.ndarray, " request"]) -> list[str]:
    """Return a remark if most of a fit's TTFT error comes from the first tenth of the measured requests."""
    places = np.flatnonzero(np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us))
    miss = np.abs(run.ttft_us - ttft_us)[places]
    first = max(round(FIRST_SHARE * len(places)), 1)
    share = miss[:first].sum() / max(miss.sum(), 1e-9)
    real, made = (float(np.mean(times[places[:first]])) for times in (run.ttft_us, ttft_us))
    if share < MOST_MISSES or real < SLOWER * made:
        return []
    return [
        f"the first {first} measured requests have {100 * share:.0f} % of what the fit misses of TTFT (measured "
        f"{real / 1e3:.0f} ms, simulated {made / 1e3:.0f} ms): a cold start? --warm-up {int(places[first - 1]) + 1} "
        "leaves them out"
    ]


def naive(run: MeasuredRun, is_fitted: Bool[np.ndarray, " request"]) -> list[ErrorRow]:
    """Return error rows of the naive prediction: held-out requests have the fitted requests' figures."""
    seen = np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)
    held_out, fitted = (
        figures(run.ttft_us[used], run.e2e_us[used], run.rows.output_len[used])
        for used in (seen & ~is_fitted, seen & is_fitted)
    )
    return [ErrorRow(NAIVE, *key, value, fitted[key]) for key, value in held_out.items()]


class RequestErrors(NamedTuple):
    """Mean absolute errors of predictions for single requests that were held out, in ms."""

    latency: str
    simulated: float
    training_mean: float  # if every request were given the mean of the fitted ones


def by_request(
    run: MeasuredRun,
    ttft_us: Float[np.ndarray, " request"],
    e2e_us: Float[np.ndarray, " request"],
    is_fitted: Bool[np.ndarray, " request"],
) -> list[RequestErrors]:
    """Return mean absolute errors over held-out requests, of the simulation and of the training mean as prediction."""
    rows = []
    for latency, real, made in zip(
        LATENCIES,
        (run.ttft_us, run.tpot_us, run.e2e_us),
        (ttft_us, tpot_of(ttft_us, e2e_us, run.rows.output_len), e2e_us),
        strict=True,
    ):
        has_both = np.isfinite(real) & np.isfinite(made)
        held_out, fitted = has_both & ~is_fitted, has_both & is_fitted
        if not (np.any(held_out) and np.any(fitted)):
            continue
        real, made = real / 1e3, made / 1e3
        off = (made[held_out], np.mean(real[fitted]))
        rows.append(
            RequestErrors(
                latency, *(float(np.mean(np.abs(real[held_out] - predicted))) for predicted in off)
            )
        )
    return rows


def figures(
    ttft_us: Float[np.ndarray, " request"],
    e2e_us: Float[np.ndarray, " request"],
    output_len: Float[np.ndarray, " request"] | Int[np.ndarray, " request"],
) -> dict[tuple[str, str], float]:
    """Return every statistic of every latency, ms; requests of one token have no TPOT."""
    values = (ttft_us, tpot_of(ttft_us, e2e_us, output_len), e2e_us)
    return {
        (latency, statistic): _statistic(of / 1e3, statistic)
        for latency, of in zip(LATENCIES, values, strict=True)
        for statistic in STATISTICS
    }


def _statistic(values: np.ndarray, name: str) -> float:
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan")
    return float(np.mean(values) if name == "mean" else np.percentile(values, float(name[1:])))


def errors_table(rows: Sequence[ErrorRow]) -> Table:
    """Return the errors as a table, a row for each statistic; the short table shows the simulation's means and P99."""
    return Table(
        ("requests", "latency", "statistic", "measured", "simulated", "error"),
        tuple(
            Row(
                (
                    row.part,
                    row.metric.partition("_")[0].upper(),
                    row.statistic.replace("p", "P"),
                    _ms(row.measured),
                    _ms(row.simulated, row.low, row.high),
                    Quantity(100 * row.error, unit=" %", is_signed=True, like=10.0),
                ),
                is_brief=row.part != NAIVE and row.statistic in ("mean", "p99"),
            )
            for row in rows
            if row.is_there
        ),
        "Errors",
        num_keys=3,
        name="errors",
    )


def _ms(value: float, low: float = math.nan, high: float = math.nan) -> Quantity:
    return Quantity(finite(value), finite(low), finite(high), unit=" ms", like=10.0)
