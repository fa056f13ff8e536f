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
# # First steps
#
# **What you will see:** one run of a cluster of eight instances, request by request; where the time to first
# token goes; the same run on many seeds; and how the picture changes when one setting changes. About a minute.

# %%
import os

import numpy as np
from matplotlib import pyplot as plt

from blis_jax import (
    TTFT_PARTS,
    ClusterConfig,
    draw_requests,
    figures_of,
    load_builtin,
    over_seeds,
    override,
    simulate,
)

IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"
NUM_REQUESTS, NUM_SEEDS = (200, 4) if IS_SMALL else (1000, 50)

# %% [markdown]
# ## One run
# A workload says who asks for what and how often; a configuration says what the cluster does with it. `mixed` is
# a burst: its requests come at 2,000 a second, so 1,000 of them are there after half a second.

# %%
workload = override(load_builtin("mixed"), num_requests=NUM_REQUESTS)
cluster = ClusterConfig(num_instances=8, routing_policy="weighted")
table, names = draw_requests(workload, seed=42, block_size=cluster.block_size_in_tokens)
record = simulate(cluster, table)
requests = record.requests
print(
    record.outcome.name,
    len(requests.ttft_us),
    "requests,",
    requests.preemptions.sum(),
    "preemptions",
)

# %% [markdown]
# Every request has its whole life in the record: one step makes a data frame of it, another a labelled dataset of the
# run's figures. TTFT is the time from arrival to the first output token.

# %%
frame = record.to_dataframe()
frame.groupby("slo_class", observed=True)[["ttft_us", "e2e_us"]].quantile([0.5, 0.99])

# %%
record.to_dataset(cluster)["ttft_ms"].sel(quantile=0.99).to_series()

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
for name, of_class in frame.groupby("slo_class", observed=True):
    axis.plot(of_class.arrival_us / 1e6, of_class.ttft_us / 1e3, ".", label=name, ms=4)
axis.set_xlabel("arrival, s")
axis.set_ylabel("TTFT, ms")
axis.set_title("Who comes later waits longer: the burst fills the queues")
axis.legend(title="SLO class")
plt.show()

# %% [markdown]
# ## Where the time goes
# The TTFT of a request is the sum of its parts, to the microsecond.

# %%
parts_ms = requests.ttft_parts_us / 1e3
assert np.allclose(parts_ms.sum(axis=1), requests.ttft_us / 1e3)
figure, axis = plt.subplots(figsize=(7, 1.8), layout="constrained")
left = 0.0
for name, mean in zip(TTFT_PARTS, parts_ms.mean(axis=0), strict=True):
    if mean > 0:
        axis.barh(0, mean, left=left, label=f"{name.replace('_', ' ')} {mean:.1f} ms")
        left += mean
axis.set_yticks([])
axis.set_xlabel("mean TTFT, ms")
axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.45), ncols=3, frameon=False)
plt.show()

# %% [markdown]
# ## Many seeds
# One seed is one draw of the requests. A claim needs many; they run in one compiled call.

# %%
METRIC = "ttft_p99_ms[critical]"


def p99_of(config):
    """TTFT P99 of the critical class, ms, `[seed]`."""
    runs = over_seeds(config, workload, range(NUM_SEEDS), figures_of([METRIC]))
    return np.array([run.metrics[METRIC] for run in runs])


usual = p99_of(cluster)
print(
    f"P99 of critical requests: {usual.mean():.1f} ms, one seed in ten outside "
    f"{np.quantile(usual, 0.05):.1f} to {np.quantile(usual, 0.95):.1f}"
)

# %% [markdown]
# ## One setting changed
# Urgent requests first, on the same requests: each seed gives one difference.

# %%
urgent = cluster.replace(priority_policy="slo-tiered", scheduler="priority-fcfs")
other = p99_of(urgent)
change = 100 * (other / usual - 1)
figure, axis = plt.subplots(figsize=(6, 2.6), layout="constrained")
axis.hist(change, bins=15, color="C0")
axis.axvline(0, color="k", lw=1)
axis.set_xlabel("change of critical TTFT P99 on the same requests, %")
axis.set_ylabel("seeds")
plt.show()
print(f"{(change < 0).mean():.0%} of {len(change)} seeds are better")

# %% [markdown]
# How sure that is, and what it costs the other classes, is the next notebook.
