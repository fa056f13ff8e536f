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
# # Comparing strategies properly
#
# **What you will see:** how far three seeds can mislead, what it saves to run both strategies on the same requests,
# an interval for the difference, and what a better critical class costs the others.

# %%
import os

import numpy as np
from matplotlib import pyplot as plt

import blis_jax

IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"
NUM_REQUESTS, NUM_SEEDS = (200, 16) if IS_SMALL else (1000, 100)
CLASSES = ("critical", "standard", "sheddable")
STRATEGIES = ("iter00_baseline", "tuned=iter08_token_budget@published")

# %% [markdown]
# ## Two strategies of the record on common requests
# `blis_jax.sweep` draws the requests of each seed once, and runs every strategy on them.

# %%
runs = blis_jax.sweep(
    *STRATEGIES, workload="mixed", num_requests=NUM_REQUESTS, seeds=NUM_SEEDS
).to_dataset()
baseline, tuned = runs.ttft_ms.sel(quantile=0.99, slo_class=list(CLASSES)).values  # [seed, class]

# %% [markdown]
# ## Three seeds
# Take any three of the seeds, as a study with little time would, and look at how far the answer moves.

# %%
random = np.random.default_rng(0)
picks = np.array([random.choice(NUM_SEEDS, 3, replace=False) for _ in range(400)])
change = 100 * (tuned / baseline - 1)
of_three = 100 * (tuned[picks].mean(axis=1) / baseline[picks].mean(axis=1) - 1)
figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained", sharey=True)
for axis, name, three, all_seeds in zip(axes, CLASSES, of_three.T, change.T, strict=True):
    axis.hist(three, bins=25, color="C9")
    axis.axvline(all_seeds.mean(), color="C3", label="all seeds")
    axis.axvline(0, color="k", lw=1)
    axis.set_title(name)
    axis.set_xlabel("change of TTFT P99, %")
axes[0].set_ylabel("sets of three seeds")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# ## Pairing
# The requests of a seed make both strategies slow or fast together. A difference on the same requests is free of
# that; a difference of two unrelated means is not.

# %%
for place, name in enumerate(CLASSES):
    difference = tuned[:, place] - baseline[:, place]
    paired = difference.std(ddof=1) / np.sqrt(NUM_SEEDS)
    unrelated = np.sqrt((tuned[:, place].var(ddof=1) + baseline[:, place].var(ddof=1)) / NUM_SEEDS)
    print(
        f"{name:<10} {difference.mean():+8.2f} ms; standard error {paired:.2f} paired, "
        f"{unrelated:.2f} unpaired: {(unrelated / paired) ** 2:.1f} times as many seeds"
    )

# %% [markdown]
# ## Intervals and verdicts, for all classes at once
# Looking at three classes is three chances of a false alarm: Holm's method accounts for that. `blis_jax.compare` does
# it for every metric, as `blis-jax compare iter00_baseline tuned=iter08_token_budget@published` does.

# %%
found = blis_jax.compare(
    *STRATEGIES, workload="mixed", num_requests=NUM_REQUESTS, seeds=min(NUM_SEEDS, 20)
)
print(found.verdict)
found.plot()

# %%
frame = found.to_dataframe()
frame[frame["metric"].str.startswith("TTFT")]

# %% [markdown]
# A gain for one class that another pays for is a choice, not an improvement: always read all of them.
