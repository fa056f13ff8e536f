# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Calibrating to your cluster
#
# **What you will see:** latencies of a measured run, coefficients of the step-time model fitted to its first
# requests, how well they predict the others, what the run could not tell, and what that uncertainty
# means for a comparison of two strategies. The run here is made up, so the true numbers are known.

# %%
import os
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

from blis_jax import ClusterConfig
from blis_jax.calibrate import (
    CalibrationPlan,
    calibrate,
    cluster_values,
    load_fit,
    read_measured,
    to_document,
)
from blis_jax.reports.style import RULES

plt.rcParams.update(RULES)
IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"
EXAMPLES = Path(os.environ.get("BLIS_JAX_EXAMPLES", "../examples"))
TRUE = {"alpha0": 900.0, "beta0": 7000.0, "beta1": 38.0, "beta2": 55.0, "beta3": 0.11}

# %% [markdown]
# ## A measured run
# A benchmark of vLLM leaves, for every request, when it was queued and when its first and last token came.
# Settings that its files state are taken from there; KV blocks from the use that was logged while only the requests
# that will be fitted were there.

# %%
run = read_measured(EXAMPLES / "measured_run", num_fitted=60)
print(len(run), "requests;", run.settings)
print(*run.notes, sep="\n")
config = ClusterConfig(**cluster_values(run.settings, {}), corrected=True)

# %% [markdown]
# ## The fit
# Derivatives go through the simulator itself. Only the latencies of the first 60 requests are looked at; arrivals
# and lengths of all are known.

# %%
terms = ("alpha0", "beta0", "beta1", "beta2", "beta3")
found = calibrate(
    run, config, CalibrationPlan(terms, num_fitted=60, num_starts=1 if IS_SMALL else 4)
)
for term, value, (low, high) in zip(
    terms, found.fit.values, found.uncertainty.intervals, strict=True
):
    print(f"{term}: {value:10.4g}  95 % {low:.4g} to {high:.4g}   true {TRUE[term]:g}")
print(*found.remarks, sep="\n")

# %% [markdown]
# ## Requests held out

# %%
for row in found.errors:
    if row.part == "held out" and row.statistic in ("mean", "p90"):
        print(
            f"{row.metric:<8} {row.statistic:<5} measured {row.measured:8.1f}  "
            f"simulated {row.simulated:8.1f}  {100 * row.error:+.1f} %"
        )

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
is_fitted = np.arange(len(run)) < 60
made = (found.latencies.ttft_us / 1e3, found.latencies.e2e_us / 1e3)
real = (run.ttft_us / 1e3, run.e2e_us / 1e3)
for axis, name, x, y in zip(axes, ("TTFT, ms", "E2E, ms"), real, made, strict=True):
    axis.plot(x[is_fitted], y[is_fitted], ".", label="fitted")
    axis.plot(x[~is_fitted], y[~is_fitted], "x", label="held out")
    limits = [0, max(x.max(), y.max()) * 1.05]
    axis.plot(limits, limits, color="k", lw=1)
    axis.set_xlabel(f"measured {name}")
    axis.set_ylabel(f"simulated {name}")
axes[0].legend()
plt.show()

# %% [markdown]
# ## What is known only together
# A cost per decode token and a cost per token of context move together in this run: one can be traded for the
# other along the ellipse. Predictions near the measured regime hardly care; far from it they do.

# %%
import json
import tempfile

path = Path(tempfile.mkdtemp()) / "fit.json"
path.write_text(json.dumps(to_document(found)))
draws = load_fit(path).draws(400, seed=0)
figure, axis = plt.subplots(figsize=(4.5, 3.5), layout="constrained")
axis.plot(draws[:, 3], draws[:, 4], ".", ms=3, alpha=0.5, label="draws of the fit")
axis.plot(TRUE["beta2"], TRUE["beta3"], "k*", ms=12, label="true")
axis.set_xlabel("β2, µs per decode token")
axis.set_ylabel("β3, µs per token of context")
axis.legend()
plt.show()

# %% [markdown]
# ## Carried into a comparison
# `blis-jax compare … --coefficients-from fit.json` runs every strategy with each draw, and says how
# wide a P99 is because of what the run left open, and how probable it is that a strategy is the best.

# %%
from sweeps.compare import __main__ as compare

code = compare.main(
    [
        "iter00_baseline",
        "tuned=iter08_token_budget@published",
        "--coefficients-from",
        str(path),
        "--draws",
        "4" if IS_SMALL else "24",
        "--num-seeds",
        "3" if IS_SMALL else "10",
        "--num-requests",
        "100" if IS_SMALL else "1000",
        "--metrics",
        "ttft_p99_ms",
        "--inert",
        "records",
        "--output",
        str(path.with_name("comparison.json")),
        "--figure",
        "none",
        "--quiet",
    ]
)
document = json.loads(path.with_name("comparison.json").read_text())
for entry in document["coefficients"]["figures"]:
    print(
        f"{entry['class']:<10} {entry['arm']:<16} P99 {entry['mean']:7.1f} ms "
        f"[{entry['low']:.1f}, {entry['high']:.1f}], best with probability "
        f"{entry['probability_of_best']:.2f}"
    )
