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
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import blis_jax

IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"
EXAMPLES = Path(os.environ.get("BLIS_JAX_EXAMPLES", "../examples"))
FIT = Path(tempfile.mkdtemp()) / "fit.json"
TRUE = {"alpha0": 900.0, "beta0": 7000.0, "beta1": 38.0, "beta2": 55.0, "beta3": 0.11}

# %% [markdown]
# ## A measured run, and the fit
# A benchmark of vLLM leaves, for every request, when it was queued and when its first and last token came.
# Settings that its files state are taken from there. Derivatives go through the simulator itself. Only the latencies
# of the first 60 requests are looked at; arrivals and lengths of all are known.

# %%
fit = blis_jax.calibrate_server(
    EXAMPLES / "measured_run",
    fit_first=60,
    context_term=True,
    starts=1 if IS_SMALL else 4,
    output=FIT,
)
fit

# %% [markdown]
# ## The coefficients, beside the true ones

# %%
coefficients = fit.to_dataframe("coefficients")
coefficients["true"] = coefficients["term"].map(TRUE)
coefficients

# %% [markdown]
# ## Requests held out
# What is right of the line in the picture took no part in the fit.

# %%
errors = fit.to_dataframe("errors")
errors[errors["requests"] == "held out"]

# %%
fit.plot()

# %% [markdown]
# ## What is known only together
# A cost per decode token and a cost per token of context move together in this run: one can be traded for the other.
# Predictions near the measured regime hardly care; far from it they do.

# %%
terms, together = fit.document["terms"], np.array(fit.document["correlations"])
figure, axis = plt.subplots(figsize=(4.2, 3.4), layout="constrained")
shown = axis.imshow(together, vmin=-1, vmax=1, cmap="RdBu")
axis.set_xticks(range(len(terms)), terms)
axis.set_yticks(range(len(terms)), terms)
figure.colorbar(shown, label="correlation of the estimates")
plt.show()

# %% [markdown]
# ## Carried into a comparison
# With `coefficients_from` every strategy runs with draws of the fit, on the server of the fit. The answer says how
# probable it is that each is the best. `blis-jax compare … --coefficients-from fit.json` is the same.

# %%
few = {"num_requests": 100} if IS_SMALL else {}
found = blis_jax.compare(
    "eight=vllm", "four=vllm:num_instances=4", coefficients_from=FIT,
    draws=4 if IS_SMALL else 24, seeds=3 if IS_SMALL else 10, metrics="ttft_p99_ms", **few,
)  # fmt: skip
print(found)

# %%
found.plot()
