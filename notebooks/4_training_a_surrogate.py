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
import xarray as xr
from matplotlib import pyplot as plt

from blis_jax.reports.style import BLUE, RULES, SKY
from surrogate import train
from surrogate.predictor import Surrogate
from sweeps.dataset import __main__ as dataset

plt.rcParams.update(RULES)
IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"
FOLDER = Path(tempfile.mkdtemp())
METRIC = "ttft_p99_ms[critical]"

# %% [markdown]
# ## Data
# Points all over the space of iteration 8, each on a few seeds. Calibration and test points are drawn apart.

# %%
options = ["iter08_token_budget", "--out", str(FOLDER / "data.zarr"), "--quiet"]
if IS_SMALL:
    options += ["--points", "64", "--calibration", "32", "--test", "32", "--seeds", "8"]
    options += ["--train-seeds", "4", "--num-requests", "60", "--metrics", "ttft_p99_ms"]
else:
    options += ["--points", "1024", "--calibration", "256", "--test", "256", "--seeds", "32"]
assert dataset.main(options) == 0
data = xr.open_zarr(FOLDER / "data.zarr", consolidated=False)
data

# %% [markdown]
# ## Fit
# An ensemble of small networks: their mean is the prediction, their disagreement what they do not know.

# %%
options = [str(FOLDER / "data.zarr"), "--out", str(FOLDER / "model"), "--quiet"]
options += ["--members", "3", "--steps", "300"] if IS_SMALL else []
assert train.main(options) == 0
surrogate = Surrogate.load(FOLDER / "model")
print(dict(zip(surrogate.names, surrogate.bounds, strict=True)))

# %% [markdown]
# ## Points it has not seen

# %%
is_test = data["role"].values == "test"
points = data["inputs"].values[is_test]
runs = data["value"].sel(metric=METRIC).values[is_test]
true = np.nanmean(runs, axis=1)
found = surrogate.predict(points).sel(output=METRIC)
residual = true - found["mean"].values
print(
    f"R² of the mean over seeds: {1 - residual.var() / true.var():.4f} on {len(true)} test points"
)
inside = (true >= found["low"].values) & (true <= found["high"].values)
print(f"90 % intervals hold {inside.mean():.1%} of the means")

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
reach = np.array([found["mean"] - found["low"], found["high"] - found["mean"]])
axes[0].errorbar(true, found["mean"], yerr=reach, fmt=".", ms=4, lw=0.5, color=BLUE)
axes[0].plot([true.min(), true.max()], [true.min(), true.max()], color="k", lw=1)
axes[0].set_xlabel("simulated critical TTFT P99, ms")
axes[0].set_ylabel("predicted, with 90 % interval, ms")
axes[1].hist(residual, bins=20, color=SKY)
axes[1].set_xlabel("simulated − predicted, ms")
axes[1].set_ylabel("test points")
plt.show()

# %% [markdown]
# ## How fast, and what it is good for
# A hundred thousand points in a second or so: enough to look at a whole space, and to follow its gradient.

# %%
low, high = np.array(surrogate.bounds).T
many = np.random.default_rng(0).uniform(low, high, (2_000 if IS_SMALL else 100_000, len(low)))
surrogate.predict_mean(many)  # compiles
start = time.perf_counter()
means = surrogate.predict_mean(many)[METRIC]
print(f"{len(many) / (time.perf_counter() - start):,.0f} points/s")
best = many[np.argmin(means)]
print("best of them:", dict(zip(surrogate.names, best.round(3), strict=True)))
print(
    "its gradient:",
    dict(zip(surrogate.names, surrogate.gradient(best[None], METRIC)[0], strict=True)),
)

# %% [markdown]
# ## Where it must not be trusted
# Outside of what it was trained on a network says something all the same. The surrogate says why not to listen.

# %%
outside = surrogate.predict(best[None] + 3 * (high - low))
print(bool(outside["in_domain"].values[0]), "–", str(outside["reason"].values[0]))

# %% [markdown]
# Whatever a surrogate finds is simulated again before it is believed.
