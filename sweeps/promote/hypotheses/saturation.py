"""The rate at which a cluster saturates, measured by the simulator."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.cluster.config import NO_HORIZON, ClusterConfig
from blis_jax.workload.spec import WorkloadSpec, override, parse_spec
from sweeps.promote.hypotheses.lengths import tokens_of_request

if TYPE_CHECKING:
    from blis_jax.results.records import RunRecord

SEEDS = (42, 123, 456)
FILLS = 3  # requests for each place of the running batch
AT_ONCE = 1e6  # requests/s: all are there before the first is served
MOST_KV = 0.9  # share of the KV blocks that the requests may need, so that none is evicted
DIGITS = 3


def saturation_rate(
    config: ClusterConfig,
    spec: WorkloadSpec,
    seeds: tuple[int, ...] = SEEDS,
    fills: int = FILLS,
) -> float:
    """Requests per second that a cluster completes while work waits at every instance.

    Each kind of instance is measured alone, with a queue that fills its batch several times, and counts as often as the
    cluster has it; so the router's balance is taken for perfect, and the CPU tier is left out. Median over the seeds,
    kept per configuration.

    Args:
        config: the cluster with its coefficients; nothing is turned away, and no clock ends the run.
        spec: the workload; its lengths and prefixes count, its rate does not.
        seeds: of the runs; one is enough where all lengths are alike.
        fills: requests for each place of the running batch, at least 2; 2 are enough where all lengths are alike.
    """
    content = json.dumps(spec.content(), sort_keys=True)
    admission = tuple(one for one in config.policy_numbers if not one[0].startswith("admission."))
    total = 0.0
    for group in config.instances or (None,):
        one = dataclasses.replace(
            config,
            instances=(),
            num_instances=1,
            admission_policy="always-admit",
            policy_numbers=admission,
            horizon=NO_HORIZON,
            **((group.numbers() if group is not None else {}) | {"kv_cpu_blocks": 0}),
        )
        count = group.count if group is not None else config.num_instances
        total += count * _of_one_instance(one, content, seeds, fills)
    return float(f"{total:.{DIGITS}g}")


@functools.lru_cache(maxsize=64)
def _of_one_instance(
    config: ClusterConfig, content: str, seeds: tuple[int, ...], fills: int
) -> float:
    from sweeps.runs.bench import Bench

    spec = parse_spec(content)
    blocks = tokens_of_request(spec) / config.block_size_in_tokens
    fitting = int(MOST_KV * config.total_kv_blocks / blocks)
    count = max(1, min(fills * config.max_num_running_reqs, fitting))
    bench = Bench(
        override(spec, num_requests=count, aggregate_rate=AT_ONCE, horizon=0), seeds, "jax", ()
    )
    (rates,) = bench.summaries(
        [config], lambda run: _completions_per_s(run, config.max_num_running_reqs)
    )
    return float(np.median(rates))


def _completions_per_s(run: RunRecord, places: int) -> float:
    """Completions from when every place is filled until the last request leaves the queue, over that time.

    In between one request begins for each that ends. Where memory holds fewer requests than there are places, none
    waits: then all completions count, from the beginning to the end.
    """
    requests = run.requests
    waited = requests.first_sched_delay_us
    begins = np.sort((requests.arrival_us + waited)[waited >= 0])
    ends = requests.left_us[requests.left_us >= 0]
    if len(begins) > places:
        first, last = int(begins[places - 1]), int(begins[-1])
        done = int(np.count_nonzero((ends > first) & (ends <= last)))
    else:
        first, last, done = int(requests.arrival_us.min()), int(ends.max()), len(ends)
    return float(done / (last - first) * 1e6)
