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
# # Sensitivity of a strategy
#
# **What you will see:** which parameters of a tuned strategy matter for which class, which may be left alone, where
# two of them act together, and in which ranges the best points lie. The strategy is the ledger's iteration 8.

# %%
import os

import numpy as np
from matplotlib import pyplot as plt

import blis_jax

IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"

# %% [markdown]
# ## The study
# One function does everything: Sobol indices from a Saltelli design, Morris screening, derivative-based measures,
# effects of one and two parameters. `blis-jax sensitivity … --plan` says beforehand how much that is.

# %%
sizes = {"base": 16, "trajectories": 4, "gradients": 4, "levels": 3, "bases": 4, "pairs": 1}
few = {**sizes, "seeds": 4, "num_requests": 60, "bootstrap": 99} if IS_SMALL else {}
found = blis_jax.sensitivity("iter08_token_budget", metrics="ttft_p99_ms", **few)
found

# %% [markdown]
# ## In plain words

# %%
print(found)

# %%
found.plot()

# %% [markdown]
# ## Total indices
# The share of a metric's variance that a parameter has to do with, alone or together with others. An interval that
# reaches below what a parameter without any effect gets is not distinguishable from noise.

# %%
simulator = found.to_dataset().sel(model="simulator")
figure, axes = plt.subplots(
    1, simulator.sizes["metric"], figsize=(10, 2.8), layout="constrained", sharey=True
)
for axis, metric in zip(axes, simulator["metric"].values, strict=True):
    one = simulator.sel(metric=metric)
    place = np.arange(one.sizes["parameter"])
    value, low, high = one["total_order"].values.T  # of each parameter, with its interval
    axis.barh(place, value, color="C0")
    axis.hlines(place, low, high, color="k", lw=1)
    axis.set_title(metric, fontsize=9)
    axis.set_xlabel("total index")
    axis.set_xlim(0, None)
axes[0].set_yticks(place, simulator["parameter"].values)
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# A parameter that is nothing to every class can be fixed at any value in its range: the search becomes smaller.
# One that matters to one class and not to another is where classes are traded against each other.
