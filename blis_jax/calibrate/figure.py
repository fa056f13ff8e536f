"""A calibration as a picture: measured and simulated latencies of every request, side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blis_jax.atomic_write import replacing
from blis_jax.calibrate.calibration import Calibration

MEASURED, SIMULATED = "#444444", "#d1495b"


def draw(found: Calibration, path: Path) -> None:
    """TTFT, TPOT and E2E over arrival; the requests held out are shaded."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    run, made = found.run, found.latencies
    gaps = np.where(run.rows.output_len > 1, run.rows.output_len - 1.0, np.nan)
    panels = (
        ("TTFT, s", run.ttft_us / 1e6, made.ttft_us / 1e6),
        ("TPOT, ms", run.tpot_us / 1e3, (made.e2e_us - made.ttft_us) / gaps / 1e3),
        ("E2E, s", run.e2e_us / 1e6, made.e2e_us / 1e6),
    )
    arrival = run.rows.arrival_us / 1e6
    figure, axes = pyplot.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    for axis, (label, real, simulated) in zip(axes, panels, strict=True):
        axis.plot(arrival, real, ".", color=MEASURED, ms=5, label="measured")
        axis.plot(arrival, simulated, "x", color=SIMULATED, ms=4, label="simulated")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        if found.plan.num_fitted and found.plan.num_fitted < len(run):
            split = arrival[found.plan.num_fitted - 1 : found.plan.num_fitted + 1].mean()
            axis.axvspan(split, arrival.max(), color="#f0e6d2", zorder=0, label="held out")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    axes[0].set_title(
        f"{run.settings.model or 'Measured run'}: one point per request, simulated with the fit"
    )
    axes[-1].set_xlabel("arrival, s")
    with replacing(path) as written:
        figure.savefig(written, dpi=130, format="png")
    pyplot.close(figure)
