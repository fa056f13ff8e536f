"""A small task, and programs for it in Python."""

from __future__ import annotations

from pathlib import Path

TASK = """\
name: small
cluster: {model: qwen/qwen3-14b, num_instances: 2, routing_scorers: "prefix-affinity:1,load-balance:1"}
baseline: round-robin
workloads: [mixed]
num_requests: 60
seeds: [42, 456]
score: {e2e_mean_ms: 0.5, e2e_p95_ms: 0.5}
"""
MOST_LOADED = '''\
"""Every request goes to one instance."""

import jax.numpy as jnp

from blis_jax.policies import routing_policy


@routing_policy()
def {name}(params, state, context):
    # EVOLVE-BLOCK-START
    place = jnp.int32({place})
    # EVOLVE-BLOCK-END
    return place, state
'''


PROGRAM = '''\
"""A router."""

import jax.numpy as jnp

from blis_jax.core.exact import exact_product
from blis_jax.policies import routing_policy


@routing_policy()
def route(params, state, context):
    load = context.snapshots.effective_load.astype(jnp.float64)
    score = {score}
    return jnp.argmin(score).astype(jnp.int32), state
'''


def task_file(folder: Path, text: str = TASK, **replaced: str) -> Path:
    """Write a task; keys are replaced, or added."""
    lines = [line for line in text.splitlines() if line.partition(":")[0] not in replaced]
    lines += [f"{key}: {value}" for key, value in replaced.items()]
    path = folder / "task.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def program_file(folder: Path, place: str = "0", name: str = "route") -> Path:
    """Write a program that sends every request to one instance."""
    path = folder / "program.py"
    path.write_text(MOST_LOADED.format(place=place, name=name))
    return path
