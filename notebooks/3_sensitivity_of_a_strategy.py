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

# %% [markdown]
# ## Total indices
# The share of a metric's variance that a parameter has to do with, alone or together with others. An interval that
# reaches below what a parameter without any effect gets is not distinguishable from noise.

# %%
found.plot()

# %% [markdown]
# The same numbers with their intervals, as a labelled dataset:

# %%
found.to_dataset()["total_order"].sel(model="simulator").to_series().unstack().round(3)

# %% [markdown]
# A parameter that is nothing to every class can be fixed at any value in its range: the search becomes smaller.
# One that matters to one class and not to another is where classes are traded against each other.
