"""From which load on drafting costs more than it gains: TPOT with K drafts against none, by load, K and acceptance.

python examples/drafts/break_even.py                   the table
python examples/drafts/break_even.py --figure F.png    and the figure
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from blis_jax import ClusterConfig, load_spec, override, run_grid
from blis_jax.backend import prepare_backend
from blis_jax.latency.registry import lookup
from blis_jax.metrics.scalars import evaluate
from blis_jax.reports.drawing import save
from blis_jax.reports.pictures import Axis, Panel, Picture, Series, Style
from blis_jax.reports.style import STRATEGY_COLOURS

MODEL, GPU, TP = "openai/gpt-oss-120b", "H100", 2
RATES, ACCEPTANCES, DRAFTS = (1, 10, 20, 30, 40, 50), (0.5, 0.7, 0.9), (1, 2, 3, 5)
DRAFT_STEP_US = 100.0  # an assumption: a twentieth of a step, as an EAGLE head of one layer takes
SECONDS, SEEDS = 20, range(5)
SPEC = load_spec(Path(__file__).with_name("workload.yaml"))


def cluster(num: int, acceptance: float) -> ClusterConfig:
    """Return one instance that drafts `num` tokens, of which the share `acceptance` is accepted."""
    fit = lookup(MODEL, GPU, TP)
    return ClusterConfig(
        model=MODEL,
        hardware=GPU,
        tp=TP,
        alpha_coeffs=(
            *fit.alpha[:2],
            0.0,
        ),  # the engine's steps alone, without its output processing
        beta_coeffs=fit.beta,
        total_kv_blocks=fit.total_kv_blocks,
        corrected=True,
        speculative_config={
            "method": "eagle",
            "num_speculative_tokens": num,
            "acceptance_rate": acceptance,
            "draft_step_us": DRAFT_STEP_US,
        },
    )


def gains() -> dict[tuple[float, int], np.ndarray]:
    """Return by acceptance and K how much shorter TPOT is than without drafts, as a share `[rate, seed]`."""
    arms = [(0.0, 0), *((rate, num) for rate in ACCEPTANCES for num in DRAFTS)]
    points = [(arm, rate) for arm in arms for rate in RATES]
    configs = [cluster(num, acceptance) for (acceptance, num), _ in points]
    specs = [
        override(SPEC, aggregate_rate=float(rate), num_requests=SECONDS * rate)
        for _, rate in points
    ]
    found = run_grid(configs, specs, SEEDS, lambda record: evaluate(record, ["tpot_mean_ms"]))
    tpot = np.array([[one["tpot_mean_ms"] for one in row] for row in found.rows])
    of_arm = dict(zip(arms, tpot.reshape(len(arms), len(RATES), -1), strict=True))
    plain = of_arm.pop((0.0, 0))
    return {arm: 1 - with_drafts / plain for arm, with_drafts in of_arm.items()}


def break_even(gain: np.ndarray) -> str:
    """Return the load at which a mean gain crosses 0, between two that were simulated."""
    after = np.flatnonzero(gain < 0)
    if not len(after):
        return f"> {RATES[-1]}"
    if not after[0]:
        return f"< {RATES[0]}"
    low, high = after[0] - 1, after[0]
    return f"{np.interp(0, [gain[high], gain[low]], [RATES[high], RATES[low]]):.0f}"


def table(found: dict[tuple[float, int], np.ndarray]) -> str:
    """Return the table in Markdown: the gain with its standard error, and the load from which there is none."""
    heads = [f"{rate} req/s" for rate in RATES]
    lines = [
        f"| acceptance | K | {' | '.join(heads)} | loses from |",
        "|---" * (len(RATES) + 3) + "|",
    ]
    for (acceptance, num), gain in found.items():
        mean, error = gain.mean(axis=1), gain.std(axis=1, ddof=1) / np.sqrt(gain.shape[1])
        cells = [
            f"{100 * one:+.0f} ± {100 * by:.1f} %" for one, by in zip(mean, error, strict=True)
        ]
        lines.append(f"| {acceptance:g} | {num} | {' | '.join(cells)} | {break_even(mean)} req/s |")
    return "\n".join(lines)


def picture(found: dict[tuple[float, int], np.ndarray]) -> Picture:
    """Return a panel for each acceptance, with a line for each K."""
    panels = []
    for acceptance in ACCEPTANCES:
        marks = []
        for num, colour in zip(DRAFTS, STRATEGY_COLOURS[1:], strict=False):
            gain = 100 * found[acceptance, num]
            mean, error = gain.mean(axis=1), 2 * gain.std(axis=1, ddof=1) / np.sqrt(gain.shape[1])
            low, middle, high = ((mean + part * error).tolist() for part in (-1, 0, 1))
            style = Style(colour, marker="o", line="-")
            marks.append(Series(RATES, middle, style, f"K = {num}", y_low=low, y_high=high))
        none = Series((RATES[0], RATES[-1]), (0.0, 0.0), Style(line="--", width=1.0), "no drafts")
        x, y = Axis("requests per second"), Axis("TPOT shorter by, %" * (not panels))
        panels.append(Panel([*marks, none], x, y, f"acceptance {acceptance:g}"))
    return Picture(
        "Drafts gain at low load, and lose where steps are full",
        f"K: tokens that are drafted in each step; acceptance: the chance that a draft is accepted. {MODEL}, {TP} "
        f"{GPU}, a drafter of {DRAFT_STEP_US:g} µs a draft; bars: two standard errors, {len(SEEDS)} seeds.",
        [panels],
        [3.0],
        shares_y="row",
    )


def main() -> None:
    """Print the table; draw the figure if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", type=Path)
    path = parser.parse_args().figure
    prepare_backend()
    found = gains()
    print(table(found))
    if path is not None:
        save(picture(found), path)


if __name__ == "__main__":
    main()
