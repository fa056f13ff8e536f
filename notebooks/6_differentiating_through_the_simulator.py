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
# # Differentiating through the simulator
#
# **What you will see:** how every request's latency changes with a coefficient of the step-time model, from one run;
# what such a derivative means and where it must not be trusted; and gradients for numbers that act through
# decisions, where the usual derivative is zero or undefined.

# %%
import os

import numpy as np
from matplotlib import pyplot as plt

import blis_jax
from blis_jax import (
    ClusterConfig,
    Differentiator,
    Options,
    draw_requests,
    load_builtin,
    metric_slopes,
    override,
    simulate,
)

IS_SMALL = os.environ.get("BLIS_JAX_NOTEBOOKS") == "small"
NUM_REQUESTS = 100 if IS_SMALL else 1000

# %% [markdown]
# ## One run, and its slopes
# Times are sums of step times, and step times are linear in β. As long as nobody is scheduled elsewhere or in
# another step, every latency has a slope. It costs about as much as a few runs.

# %%
workload = override(load_builtin("mixed"), num_requests=NUM_REQUESTS)
cluster = ClusterConfig(num_instances=8, routing_policy="weighted")
table, _ = draw_requests(workload, seed=1, block_size=16)
differentiator = Differentiator(["beta0", "beta1", "arrival_scale"], Options(clock="continuous"))
found = differentiator.run(cluster, table)

figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(found.record.requests.arrival_us / 1e6, found.ttft_us[0], ".", ms=3)
axis.set_xlabel("arrival, s")
axis.set_ylabel("µs of TTFT per µs of β0")
axis.set_title("The slope with respect to β0 counts the steps a request waits for")
plt.show()

# %% [markdown]
# ## Metrics
# A percentile moves with the requests around it.

# %%
names = ["ttft_mean_ms", "ttft_p99_ms", "e2e_mean_ms"]
for name, slope in metric_slopes(found, names).items():
    print(
        f"{name:<14} {slope.value:9.2f} ms; "
        + ", ".join(
            f"d/d {who} {value:+.5g}" for who, value in zip(found.wrt, slope.slopes, strict=True)
        )
    )

# %% [markdown]
# ## Where it must not be trusted
# The same slope beside the true change, for larger and larger changes of β0: while decisions stay, the line is exact;
# in a burst they flip soon, and what the flips do is not in the slope.

# %%
slope = metric_slopes(found, ["ttft_mean_ms"])["ttft_mean_ms"]
base = cluster.beta_coeffs[0]
changes = np.linspace(-0.2, 0.2, 5 if IS_SMALL else 21)
true = []
for change in changes:
    moved = cluster.replace(beta_coeffs=((1 + change) * base, *cluster.beta_coeffs[1:]))
    record = simulate(moved, table, Options(clock="continuous"))
    true.append(record.requests.ttft_us.mean() / 1e3)
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.plot(100 * changes, true, "o-", ms=3, label="simulated")
axis.plot(100 * changes, slope.value + slope.slopes[0] * changes * base, label="by the slope")
axis.set_xlabel("change of β0, %")
axis.set_ylabel("mean TTFT, ms")
axis.legend()
plt.show()

# %% [markdown]
# ## Numbers that act through decisions
# A token budget changes which requests are in a batch: the pathwise slope does not exist. A smoothed gradient asks
# instead how the mean over seeds changes when the number is perturbed by a little noise, with antithetic pairs on
# common requests, and says how sure it is.

# %%
gradient = blis_jax.gradient(
    "vllm:routing_policy=weighted;max_num_batched_tokens=2048;tensor_parallel_size=2",
    workload="mixed",
    num_requests=NUM_REQUESTS,
    seeds=8 if IS_SMALL else 64,
    perturb="max_num_batched_tokens=128",
    metrics=["ttft_p99_ms[critical]"],
    pairs=4 if IS_SMALL else 16,
)
print(gradient)
