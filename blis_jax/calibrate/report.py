"""A calibration in words: coefficients with intervals, and the table of errors."""

from __future__ import annotations

from blis_jax.calibrate.calibration import UNITS, Calibration
from blis_jax.calibrate.intervals.uncertainty import LEVEL
from blis_jax.calibrate.validation import HELD_OUT, LEVELLED, NAIVE, table


def text(found: Calibration) -> str:
    """What the command prints."""
    return "\n".join(
        [*_head(found), "", *_coefficients(found), "", table(found.errors), *_held_out(found)]
    )


def _head(found: Calibration) -> list[str]:
    run, config, fit = found.run, found.config, found.fit
    fitted = found.plan.num_fitted or len(run)
    close = sum(cost < 1.02 * fit.cost for cost in fit.start_costs)
    memory = (
        f"{config.total_kv_blocks} KV blocks"
        if config.total_kv_blocks < 1_000_000
        else "KV memory never full"
    )
    return [
        f"{len(run)} requests, fitted on the first {fitted}; {config.num_instances} instance(s), at most "
        f"{config.max_num_running_reqs} running, budget {config.max_num_scheduled_tokens}, {memory}; "
        f"profile {config.profile}.",
        f"{fit.num_simulations} simulations from {len(fit.start_costs)} starts; {close} of them end within "
        "2 % of the best.",
    ]


def _coefficients(found: Calibration) -> list[str]:
    known = found.uncertainty
    lines = [f"{'term':<7} {'value':>12}  {f'{100 * LEVEL:g} % interval':<28} unit"]
    for term, value, (low, high), is_identified in zip(
        found.plan.terms, found.fit.values, known.intervals, known.is_identified, strict=True
    ):
        interval = f"{_number(low)} to {_number(high)}"
        mark = "" if is_identified else "  (not identifiable)"
        lines.append(f"{term:<7} {_number(value):>12}  {interval:<28} {UNITS[term]}{mark}")
    return lines


def _held_out(found: Calibration) -> list[str]:
    """What the errors of the requests held out are worth."""
    if not found.by_request:
        return []
    pairs = ", ".join(
        f"{row.latency.partition('_')[0].upper()} {row.simulated:.1f} ms ({row.training_mean:.1f})"
        for row in found.by_request
    )
    has_intervals = found.predictive is not None
    return [
        "",
        f"{HELD_OUT}: the same episode as the fitted requests, so the same server, hour and mix; "
        "--coefficients-from gives the errors on another run.",
        *[f"{LEVELLED}: where the measured figure should lie."] * has_intervals,
        f"{NAIVE}: each figure of these requests predicted by that of the fitted ones, without a simulator.",
        f"Mean absolute error of a request held out, in brackets if all were given the training mean: {pairs}.",
    ]


def _number(value: float) -> str:
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
