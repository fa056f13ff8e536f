"""Small workloads made by hand or by chance, for the engine and for the oracle alike."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.cluster import config
from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.router import FlowSettings
from blis_jax.cluster.setting_values import OF_FIRST_RECORDS
from blis_jax.cluster.settings import declared_in
from blis_jax.core.kinds import KINDS, ROUTER
from blis_jax.core.pytrees import HasParts, Parts
from blis_jax.core.types import EngineShape
from blis_jax.engine.loop import first_state
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.policies import registry
from blis_jax.policies.numbers import numbers_of
from blis_jax.records.record import RunRecord
from blis_jax.records.step_records import expand_steps
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.tables.state import State
from blis_jax.workload.table import RequestTable, from_golden, pad_to, text_rank
from sweeps.strategies import moved
from tests.support.oracles import oracle

REQUEST_ARRAYS = (
    "instance",
    "admitted",
    "status",
    "queued_at_us",
    "sched_delay_us",
    "first_sched_delay_us",
    "ttft_us",
    "e2e_us",
    "preemptions",
    "num_scheduled",
    "cached_tokens_first_sched",
    "scheduled_step_idx",
    "finished_step_idx",
    "num_itl",
    "progress_index",
)
STEP_ARRAYS = (
    "step_instance",
    "step_start_us",
    "step_duration_us",
    "step_running",
    "step_waiting",
    "step_used_blocks",
)

CPU_COUNTERS = {
    "cpu_offloads": "cpu_offloads",
    "cpu_reloads": "cpu_reloads",
    "cpu_misses": "cpu_miss",
    "cpu_thrashing": "thrashing",
}

OF_WHAT_IS_SERVED = ("latency_model", "model", "model_config", "hardware", "tp", "dp")
FLAGS: dict[str, Any] = {
    "admission-latency": 0,
    "admission-policy": "always-admit",
    "alpha-coeffs": [0.0, 0.0, 0.0],
    "beta-coeffs": [1000.0, 0.0, 0.0],
    "block-size-in-tokens": 16,
    "horizon": config.NO_HORIZON,
    "kv-cpu-blocks": 0,
    "kv-offload-threshold": 0.9,
    "kv-transfer-bandwidth": 100.0,
    "kv-transfer-base-latency": 0,
    "load-adaptive-high": 15,
    "load-adaptive-low": 2,
    "long-prefill-token-threshold": 0,
    "max-num-running-reqs": 256,
    "max-num-scheduled-tokens": 2048,
    "num-instances": 1,
    "priority-policy": "constant",
    "routing-latency": 0,
    "routing-policy": "round-robin",
    "routing-scorers": "",
    "scheduler": "fcfs",
    "slo-age-weight": 1e-05,
    "slo-base-critical": 10.0,
    "slo-base-sheddable": 1.0,
    "slo-base-standard": 5.0,
    "slo-gated-threshold": 8.0,
    "slo-preemption": False,
    "slo-prefill": False,
    "slo-prefill-critical": 128,
    "slo-prefill-sheddable": 0,
    "slo-priority-bridge": False,
    "slo-scorer-bias-critical": 0.9,
    "slo-scorer-bias-sheddable": 0.2,
    "slo-threshold-sheddable": 200000,
    "slo-threshold-standard": 100000,
    "snapshot-refresh-interval": 0,
    "token-bucket-capacity": 10000.0,
    "token-bucket-refill-rate": 1000.0,
    "total-kv-blocks": 100_000,
} | {
    name.replace("_", "-"): FIELDS[name].default
    for name in (
        *("routing_picker", "policy_numbers", "load_refresh_interval", "snapshot_phases"),
        *("in_flight_counts", "prefix_index_delay", "num_gateways", "prefix_index_loss"),
        *(
            "network_delay",
            "preemption_mode",
            "mamba_cache_mode",
            "instances",
            "tenant_budgets",
            *OF_WHAT_IS_SERVED,
        ),
        *(kind.setting for kind in KINDS.values() if kind.is_optional),
        *(kind.decode_setting for kind in ROUTER),
        *declared_in(FlowSettings),
        *(name for name in registry.settings() if name not in OF_FIRST_RECORDS),
    )
}

# numbers of policies that are files, as the oracle reads them
OF_FILES = {
    old.replace("_", "-"): one.default
    for kind, paths in moved.PATHS.items()
    for path in paths.values()
    for field, one in numbers_of(registry.find(kind, path).params).items()
    for old in (f"{path.rpartition(':')[2]}_{field}", *moved._SETTINGS)
    if (named := moved.number_named(old)) and named[0].rpartition(".")[2] == field
}

OF_ROUTING_TRACK = {"precise-kv-routing"}  # only where they are given: they name the track


def from_flags(given: Mapping[str, Any]) -> ClusterConfig:
    """Return the cluster of flags that name policies as the oracle does: those of files by their earlier names."""
    names = {
        key if key in OF_ROUTING_TRACK else key.replace("-", "_"): value
        for key, value in given.items()
    }
    return config.from_flags(moved.respelled(names, vars(ClusterConfig())))


def flags(**changes: Any) -> dict[str, Any]:
    """The reference's flags with some of them changed; underscores stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    unknown = named.keys() - FLAGS.keys() - OF_FILES.keys() - OF_ROUTING_TRACK
    assert not unknown, unknown
    return FLAGS | OF_FILES | named


@dataclass(frozen=True)
class Prompt:
    """One request before it is put into arrays."""

    arrival_us: int
    input_len: int
    output_len: int = 1
    slo_class: int = 0
    group: int = -1  # shares `prefix_len` tokens with everyone in the group
    prefix_len: int = 0
    continues: int = -1  # its prompt begins with all tokens of this earlier request


def burst(
    seed: int, num_prompts: int = 40, num_times: int = 60_000, every_us: int = 1
) -> list[Prompt]:
    """Prompts of all classes at random multiples of `every_us`, some of which share 32 tokens."""
    rng = np.random.default_rng(seed)
    return [
        Prompt(
            every_us * int(rng.integers(num_times)),
            int(rng.integers(1, 120)),
            int(rng.integers(0, 40)),
            int(rng.integers(6)),
            int(rng.integers(-1, 2)),
            32,
        )
        for _ in range(num_prompts)
    ]


def workload_of(prompts: Sequence[Prompt], block_size: int = 16) -> dict[str, np.ndarray]:
    """The golden format's arrays; prompts are sorted by arrival, equal arrivals in the order given."""
    prompts = sorted(prompts, key=lambda prompt: prompt.arrival_us)
    texts: list[list[Any]] = []
    ids: dict[Any, int] = {}
    short: dict[Any, int] = {}
    counts, block_ids, short_ids, input_lens = [0], [], [], []
    for index, prompt in enumerate(prompts):
        shared = min(prompt.prefix_len, prompt.input_len) if prompt.group >= 0 else 0
        text: list[Any] = [("group", prompt.group, i) for i in range(shared)]
        if 0 <= prompt.continues < index:
            text = list(texts[prompt.continues])
        input_len = max(prompt.input_len, len(text) + (0 <= prompt.continues < index))
        text += [("own", index, i) for i in range(input_len + prompt.output_len - len(text))]
        texts.append(text)
        input_lens.append(input_len)
        previous = -1
        for start in range(0, len(text) // block_size * block_size, block_size):
            content = (previous, tuple(text[start : start + block_size]))
            previous = ids.setdefault(content, len(ids))
            block_ids.append(previous)
        counts.append(len(block_ids))
        is_short = input_len < block_size
        short_ids.append(short.setdefault(tuple(text[:input_len]), len(short)) if is_short else -1)
    size = len(prompts)
    zeros = np.zeros(size, np.int32)
    return {
        "arrival_us": np.array([prompt.arrival_us for prompt in prompts], np.int64),
        "input_len": np.array(input_lens, np.int32),
        "output_len": np.array([prompt.output_len for prompt in prompts], np.int32),
        "slo_class": np.array([prompt.slo_class for prompt in prompts], np.int8),
        "tenant": zeros.astype(np.int16),
        "client": zeros.astype(np.int16),
        "session": zeros - 1,
        "round_index": zeros.astype(np.int16),
        "id_rank": text_rank(size),
        "block_ptr": np.array(counts, np.int64),
        "block_ids_delta": np.diff(np.array(block_ids, np.int32), prepend=np.int32(0)),
        "block_size": np.int32(block_size),
        "short_input_id": np.array(short_ids, np.int32),
    }


def table_of(
    workload: Mapping[str, np.ndarray], num_nodes: int = 0, depth: int = 1, node_blocks: int = 0
) -> RequestTable:
    """The engine's table, its node axis padded to a size of the caller's choice.

    One padding node that no request holds gets `node_blocks` blocks: a wider node table for all.
    """
    table = from_golden(workload)
    if not np.any(table.path_nodes >= 0):
        return table
    wanted = max(num_nodes, table.num_nodes + (node_blocks > 0))
    table = pad_to(table, table.num_rows, wanted, max(depth, table.depth))
    if node_blocks > 0:
        lengths = np.array(table.node_blocks)
        lengths[-1] = max(node_blocks, lengths.max())
        table = replace(table, node_blocks=lengths)
    return table


def differences(record: RunRecord, expected: Any, block_size: int = 16) -> list[str]:
    """What a run has otherwise than the oracle's (or the reference's) arrays, in words."""
    arrays = expected.requests | expected.steps
    found = []
    steps = expand_steps(record, block_size)
    for name in (*REQUEST_ARRAYS, *STEP_ARRAYS):
        mine = getattr(steps if name in STEP_ARRAYS else record.requests, name)
        theirs = arrays[name]
        if np.array_equal(mine, theirs):
            continue
        if len(mine) != len(theirs):
            found.append(f"{name}: {len(mine)} entries, should be {len(theirs)}")
            continue
        at = np.flatnonzero(mine != theirs)
        found.append(
            f"{name}[{at[0]}] is {mine[at[0]]}, should be {theirs[at[0]]} ({len(at)} differ)"
        )
    for index, totals in enumerate(expected.instances):
        for name in ("gpu_hits", "gpu_misses", "used_blocks_at_end"):
            mine = int(getattr(record.instances, name)[index])
            if mine != totals["kv"][name]:
                found.append(f"instance {index}: {name} {mine}, should be {totals['kv'][name]}")
        for name in CPU_COUNTERS:
            mine = int(getattr(record.instances, name)[index])
            theirs = totals["kv"].get(CPU_COUNTERS[name], 0)
            if mine != theirs:
                found.append(f"instance {index}: {name} {mine}, should be {theirs}")
        for name in (
            "completed_requests",
            "dropped_unservable",
            "kv_blocks_used_integral",
            "total_input_tokens",
            "total_output_tokens",
            "still_queued",
            "still_running",
            "peak_kv_blocks_used",
            "sim_ended_time_us",
            "step_count",
            "preemption_count",
            "kv_allocation_failures",
            "ttft_sum_us",
        ):
            mine = int(getattr(record.instances, name)[index])
            if mine != totals[name]:
                found.append(f"instance {index}: {name} {mine}, should be {totals[name]}")
    return found


def run_both(
    workload: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    options: Options | None = None,
    variant: str = "scheduling",
    **nodes: int,
) -> tuple[RunRecord, Any]:
    """The engine's run and the oracle's."""
    cluster = from_flags({**settings, "variant": variant})
    record = simulate(cluster, table_of(workload, **nodes), options)
    return record, oracle.simulate(workload, settings, profile=variant)


class Fields(HasParts, SimpleNamespace):
    """Stand for a record of tables that has no sub-trees."""

    own = Parts()


def first_state_of(config: ClusterConfig, shape: EngineShape) -> State:
    """Return the state before the first event with tables of these sizes; no request has a deadline."""
    functions, numbers = mechanism(config), params(config, shape.num_instances)
    requests: Any = Fields(is_late=jnp.int32(0), is_wide=jnp.int32(0))
    with jax.enable_x64(True):
        return first_state(shape, functions, numbers, requests)


RECORD_PARTS = ("requests", "steps", "instances")


def assert_same_arrays(
    one: RunRecord,
    other: RunRecord,
    without: Sequence[str] = (),
    parts: Sequence[str] = RECORD_PARTS,
) -> None:
    """All arrays of two records are equal, but for those `without`."""
    for part in parts:
        for field in fields(getattr(one, part)):
            if field.name not in without:
                mine, theirs = (getattr(getattr(run, part), field.name) for run in (one, other))
                np.testing.assert_array_equal(mine, theirs, err_msg=f"{part}.{field.name}")


def assert_same_ends(one: RunRecord, other: RunRecord, names: Iterable[str]) -> None:
    """These single values of two records are equal."""
    for name in names:
        assert getattr(one, name) == getattr(other, name), name
