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
# # Training and using a surrogate
#
# **What you will see:** a fast learned model of a strategy's space, made from simulations; how well it predicts points
# that it has not seen; an interval that holds what it promises; and where it says that it must not be trusted.

# %%
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

import blis_jax

IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"
FOLDER = Path(tempfile.mkdtemp())
DATA, MODEL, POINTS = FOLDER / "data.zarr", FOLDER / "model", FOLDER / "points.csv"
METRIC = "ttft_p99_ms[critical]"

# %% [markdown]
# ## Data
# Points all over the space of iteration 8, each on a few seeds. Calibration and test points are drawn apart.

# %%
sizes = (
    {"points": 64, "calibration": 32, "test": 32, "seeds": 8, "train_seeds": 4, "num_requests": 60}
    if IS_SMALL
    else {"points": 1024, "calibration": 256, "test": 256, "seeds": 32}
)
made = blis_jax.make_dataset("iter08_token_budget", output=DATA, metrics="ttft_p99_ms", **sizes)
print(made)
data = made.to_dataset()
data

# %% [markdown]
# ## Fit
# An ensemble of small networks: their mean is the prediction, their disagreement what they do not know.

# %%
few = {"members": 3, "steps": 300} if IS_SMALL else {}
blis_jax.train_surrogate(DATA, output=MODEL, **few)

# %% [markdown]
# ## Points it has not seen
# The test points, as a table with a column for each parameter, are all that the surrogate is given.

# %%
is_test = data["role"].values == "test"
points = pd.DataFrame(data["inputs"].values[is_test], columns=data["parameter"].values)
points.to_csv(POINTS, index=False)
found = blis_jax.predict_by_surrogate(MODEL, POINTS, metrics=METRIC)
found.to_dataframe().head()

# %%
predicted = found.to_dataset().sel(output=METRIC)
true = np.nanmean(data["value"].sel(metric=METRIC).values[is_test], axis=1)
residual = true - predicted["mean"].values
print(
    f"R² of the mean over seeds: {1 - residual.var() / true.var():.4f} on {len(true)} test points"
)
inside = (true >= predicted["low"].values) & (true <= predicted["high"].values)
print(f"90 % intervals hold {inside.mean():.1%} of the means")

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
reach = [predicted["mean"] - predicted["low"], predicted["high"] - predicted["mean"]]
axes[0].errorbar(true, predicted["mean"], yerr=reach, fmt=".", ms=4, lw=0.5)
axes[0].plot([true.min(), true.max()], [true.min(), true.max()], color="k", lw=1)
axes[0].set_xlabel("simulated critical TTFT P99, ms")
axes[0].set_ylabel("predicted, with 90 % interval, ms")
axes[1].hist(residual, bins=20)
axes[1].set_xlabel("simulated − predicted, ms")
axes[1].set_ylabel("test points")
plt.show()

# %% [markdown]
# ## How fast, and what it is good for
# Thousands of points in seconds: enough to look at a whole space.

# %%
low, high = points.min(), points.max()
spread = np.random.default_rng(0).uniform(size=(200 if IS_SMALL else 5_000, len(low)))
many = pd.DataFrame(low.values + spread * (high - low).values, columns=points.columns)
many.to_csv(POINTS, index=False)
start = time.perf_counter()
everywhere = blis_jax.predict_by_surrogate(MODEL, POINTS, metrics=METRIC).to_dataset()
print(f"{len(many) / (time.perf_counter() - start):,.0f} points/s, reading and writing included")
best = many.iloc[int(everywhere["mean"].sel(output=METRIC).values.argmin())]
best.round(3)

# %% [markdown]
# ## Where it must not be trusted
# Outside of what it was trained on a network says something all the same. The surrogate says why not to listen.

# %%
pd.DataFrame([best + 3 * (high - low)]).to_csv(POINTS, index=False)
print(blis_jax.predict_by_surrogate(MODEL, POINTS, metrics=METRIC))

# %% [markdown]
# Whatever a surrogate finds is simulated again before it is believed.
