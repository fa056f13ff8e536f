"""A calibration as a picture: measured and simulated latencies of every request, side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blis_jax.calibrate.calibration import Calibration
from blis_jax.reports.figures import area_handle, figure, line_handle, save
from blis_jax.reports.style import GREY, RED

MEASURED, SIMULATED, HELD_OUT = GREY, RED, "#f0e6d2"


def draw(found: Calibration, path: Path) -> None:
    """TTFT, TPOT and E2E over arrival; the requests held out are shaded."""
    run, simulation = found.run, found.latencies
    gaps = np.where(run.rows.output_len > 1, run.rows.output_len - 1.0, np.nan)
    panels = (
        ("TTFT (s)", run.ttft_us / 1e6, simulation.ttft_us / 1e6),
        ("TPOT (ms)", run.tpot_us / 1e3, (simulation.e2e_us - simulation.ttft_us) / gaps / 1e3),
        ("E2E (s)", run.e2e_us / 1e6, simulation.e2e_us / 1e6),
    )
    arrival = run.rows.arrival_us / 1e6
    dots, crosses = (
        {"color": MEASURED, "marker": ".", "markersize": 5, "linestyle": "none"},
        {"color": SIMULATED, "marker": "x", "markersize": 4, "linestyle": "none"},
    )
    legend = [line_handle("measured", **dots), line_handle("simulated", **crosses)]
    num_fitted = found.plan.num_fitted or len(run)
    has_held_out = num_fitted < len(run)
    if has_held_out:
        legend.append(area_handle("requests held out of the fit", color=HELD_OUT))
    with figure(6.6, 3, 1, sharex=True) as (made, axes):
        for axis, (label, real, simulated) in zip(axes[:, 0], panels, strict=True):
            axis.plot(arrival, real, **dots)
            axis.plot(arrival, simulated, **crosses)
            axis.set_ylabel(label)
            if has_held_out:
                split = arrival[num_fitted - 1 : num_fitted + 1].mean()
                axis.axvspan(split, arrival.max(), color=HELD_OUT, zorder=0)
        axes[-1, 0].set_xlabel("arrival (s)")
        title = f"{run.settings.model or 'The measured run'}: measured and simulated latencies"
        caption = "One point a request, by its arrival; simulated with the fitted coefficients."
        save(made, path, title, caption, legend)
