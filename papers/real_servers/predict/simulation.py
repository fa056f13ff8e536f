"""A scene simulated: when its requests arrive, get their first token and end."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import (
    GIB,
    Deployment,
    gpu_description,
    kv_blocks,
    kv_bytes_per_token,
)
from blis_jax.latency.model_description import model_description, num_parameters
from blis_jax.latency.served_physics import ServedNumbers, vector
from blis_jax.records.record import RunRecord, Status
from blis_jax.runs.closed_loop import follow
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options, default_form
from blis_jax.workload.reference.follow_up_table import NO_PARENT, ClosedLoop
from blis_jax.workload.table import NEVER_US, RequestTable, WorkloadNames
from papers.real_servers.predict.scene import PUBLISHED, ClosedLoad, RealServer, Scene, StagedLoad
from papers.real_servers.predict.segments import LoopInstance, Request, run_loop

if TYPE_CHECKING:
    from jaxtyping import Float, Int


BLOCK_TOKENS = 16
SERVED = "served-physics"
ENGINE_ROUNDS = 4  # requests for each of those at once in a closed loop, at most
LINK_LATENCY_US, LINK_GB_PER_S = 5000.0, 25.0  # of a hand-over between pools


@dataclass(frozen=True)
class SimulatedRequests:
    """The requests of a run, by arrival; times in ms."""

    arrival_s: Float[np.ndarray, " request"]
    ttft_ms: Float[np.ndarray, " request"]
    e2e_ms: Float[np.ndarray, " request"]
    itl_ms: Float[np.ndarray, " request"]  # mean of the request; 0 for one token
    output: int  # tokens of every request
    round_index: Int[np.ndarray, " request"]  # 0 but in closed loops
    # time of all runs that these are of; None: one, from arrivals to ends
    run_s: float | None = None


def config_of(server: RealServer, beta: Sequence[float] | None) -> ClusterConfig:
    """Return the cluster of a server.

    Args:
        server: what serves.
        beta: coefficients of `served-physics`; None: `trained-physics` as BLIS publishes it.

    Raises:
        ConfigError: the model or the GPU is not known, or the model does not fit.
    """
    settings: dict[str, Any] = {
        "model": server.model.lower(),
        "hardware": server.hardware,
        "tp": server.tp,
        "dp": server.data_parallel,
        "model_config": server.model_config,
        "num_instances": server.num_instances,
        "max_num_running_reqs": server.max_num_running_reqs,
        "max_num_scheduled_tokens": server.max_num_scheduled_tokens,
        "gpu_memory_utilization": server.memory_utilization,
        "routing_policy": "least-loaded",
        "snapshot_refresh_interval": 0,
    }
    if server.total_kv_blocks:
        settings["total_kv_blocks"] = server.total_kv_blocks
    if beta is None:
        settings |= _august_pools(server) if server.pools else {}
        return ClusterConfig(revision="blis-2026-08", latency_model=PUBLISHED, **settings)
    settings.setdefault("total_kv_blocks", max(kv_blocks_of(server), 1))
    if server.pools:
        del settings["num_instances"]
        settings |= _pools(server)
    return ClusterConfig(
        corrected=True,
        latency_model=SERVED,
        alpha_coeffs=(0.0, 0.0, 0.0),
        beta_coeffs=tuple(beta),
        **settings,
    )


def _pools(server: RealServer) -> dict[str, Any]:
    """Groups with roles, and the policy that hands requests over; a transfer has the KV of all GPUs of an instance."""
    alone = [replace(server, tp=pool.tp, pools=()) for pool in server.pools]
    groups = [
        InstanceGroup(pool.count, role=pool.role, tp=pool.tp, total_kv_blocks=kv_blocks_of(single))
        for pool, single in zip(server.pools, alone, strict=True)
    ]
    numbers = {
        "link_latency_us": LINK_LATENCY_US,
        "link_gb_per_s": LINK_GB_PER_S,
        "kv_bytes_per_token": kv_bytes_per_token(deployment_of(server)) * server.tp,
    }
    return {
        "instances": tuple(groups),
        "hand_over_policy": "pools",
        "policy_numbers": tuple((f"hand_over.{name}", number) for name, number in numbers.items()),
    }


def _august_pools(server: RealServer) -> dict[str, Any]:
    """Return the settings that BLIS of 2026-08 has for pools."""
    settings: dict[str, Any] = {
        "pd_decider": "always",
        "pd_transfer_base_latency": LINK_LATENCY_US / 1e3,
        "pd_transfer_bandwidth": LINK_GB_PER_S,
    }
    for pool in server.pools:
        settings |= {f"{pool.role}_instances": pool.count, f"{pool.role}_tp": pool.tp}
    return settings


def kv_blocks_of(server: RealServer) -> int:
    """Return the number of KV blocks that fit beside the weights.

    BLIS counts the memory of all GPUs, but of a block only the part on one of them, so its number
    is divided by TP. Where layers have other attention, the number is already that of one GPU.

    Raises:
        ConfigError: the number of the model's experts is not known.
    """
    served = deployment_of(server)
    requests = server.max_num_running_reqs
    blocks = kv_blocks(served, BLOCK_TOKENS, server.memory_utilization, max_requests=requests)
    if blocks is None:
        raise ConfigError(f"model {server.model}: the number of its experts is not known")
    return blocks // server.tp if served.model.kinds.is_plain else blocks


def deployment_of(server: RealServer) -> Deployment:
    """Return the model and GPUs of one instance.

    Raises:
        ConfigError: the model or the GPU is not known.
    """
    model = model_description(server.model, server.model_config)
    gpu = gpu_description(server.hardware)
    return Deployment(model, gpu, server.tp, server.data_parallel)


def simulated(scene: Scene, beta: Sequence[float] | None) -> SimulatedRequests:
    """Make one run of the scene; `beta` as in `config_of`.

    Raises:
        ConfigError: as in `config_of`, or the run does not complete.
    """
    config = config_of(scene.server, beta)
    if isinstance(scene.load, ClosedLoad):
        return _closed(config, scene)
    table = staged_table(scene.load)
    record = simulate(config, table, _options(scene.server, scene.load))
    return _requests(record, table.arrival_us, scene.load.output, np.zeros(table.num_rows, int))


def _options(server: RealServer, load: StagedLoad | ClosedLoad) -> Any:
    """Return options with slots by the server's limit, so that runs of one server share a compiled program."""
    slots = server.max_num_running_reqs
    if isinstance(load, ClosedLoad):  # in powers of two
        slots = min(slots, max(8, 1 << (load.concurrency - 1).bit_length()))
    return Options(num_slots=slots, form=default_form(), resolve_ties=False)


def staged_table(load: StagedLoad) -> RequestTable:
    """Return the requests with constant arrivals; every user's prompt is one node of full blocks."""
    start_s, parts = 0.0, []
    for stage in load.stages:
        parts.append(start_s + np.arange(int(stage.rate * stage.duration_s)) / stage.rate)
        start_s += stage.duration_s
    arrival_us = np.round(np.concatenate(parts) * 1e6).astype(np.int64)
    user = (np.arange(len(arrival_us)) % load.num_users).astype(np.int32)
    blocks = load.prompt // BLOCK_TOKENS
    if not blocks:
        return _table(arrival_us, load, np.full((len(user), 1), -1), 0)
    return _table(arrival_us, load, user[:, None], load.num_users)


def _table(
    arrival_us: np.ndarray, load: StagedLoad | ClosedLoad, path: np.ndarray, num_nodes: int
) -> RequestTable:
    """Return requests that are alike but for their arrivals and the node of their prompt."""
    number = len(arrival_us)

    def all_of(value: int) -> Any:
        return np.full(number, value, np.int32)

    rows = np.arange(number, dtype=np.int32)
    return RequestTable(
        arrival_us=arrival_us,
        input_len=all_of(load.prompt),
        output_len=all_of(load.output),
        slo_class=all_of(0),
        tenant=all_of(0),
        client=all_of(0),
        session=all_of(-1),
        round_index=all_of(0),
        tie_rank=rows,
        path_nodes=path.astype(np.int32),
        prompt_key=path[:, 0].astype(np.int32) if num_nodes else rows,
        node_start=np.zeros(num_nodes, np.int32),
        node_blocks=np.full(num_nodes, load.prompt // BLOCK_TOKENS, np.int32),
    )


def _closed(config: ClusterConfig, scene: Scene) -> SimulatedRequests:
    """Users who wait for their answers, each with a few requests."""
    load = scene.load
    assert isinstance(load, ClosedLoad)
    load = replace(load, rounds=min(load.rounds, ENGINE_ROUNDS))
    run = follow(config, closed_loop(load), _options(scene.server, load))
    rounds = np.asarray(run.loop.table.round_index)[run.rows]
    return _requests(run.record, run.table.arrival_us, load.output, rounds)


def closed_loop(load: ClosedLoad) -> Any:
    """Return the load as sessions without think time: the table of all requests, and which request follows which."""
    number = load.concurrency * load.rounds
    arrival_us = np.full(number, NEVER_US, np.int64)
    arrival_us[: load.concurrency] = 0
    table = _table(arrival_us, load, np.full((number, 1), -1), 0)
    rows = np.arange(number, dtype=np.int32)
    user, turn = rows % load.concurrency, rows // load.concurrency
    return ClosedLoop(
        table=dataclasses.replace(table, session=user, round_index=turn),
        names=WorkloadNames(),
        requests=(),
        session_names=tuple(map(str, range(load.concurrency))),
        parent=np.where(turn > 0, rows - load.concurrency, NO_PARENT).astype(np.int32),
        think_time_us=np.zeros(number, np.int64),
        timeout_us=np.zeros(number, np.int64),
        is_growing=np.zeros(number, bool),
        id_rank=rows,
        is_cut=np.zeros(number, bool),
        budget=number,
        horizon_us=NEVER_US - 1,
    )


def _requests(record: RunRecord, arrival_us: Any, output: int, rounds: Any) -> SimulatedRequests:
    if record.outcome is not Outcome.COMPLETED:
        raise ConfigError(f"the run does not complete: {record.outcome.sentence}")
    requests = record.requests
    done = np.asarray(requests.status) == Status.COMPLETED
    if not done.any():
        raise ConfigError("no request completes; the prompts may be longer than the server allows")
    ttft, e2e = requests.ttft_us[done] / 1e3, requests.e2e_us[done] / 1e3
    return SimulatedRequests(
        np.asarray(arrival_us)[done] / 1e6,
        ttft,
        e2e,
        (e2e - ttft) / max(output - 1, 1),
        output,
        np.asarray(rounds)[done],
    )


# --- closed loops by the step law: instances and requests for `segments`, and what came out -------


SEEDS = 4  # runs that a prediction is the mean of
FEW = 2000  # requests of one run; from here on one run is enough


@dataclass(frozen=True)
class LoopView:
    """The delays of a closed loop beside the steps of the servers; the default adds nothing."""

    entry_ms: float = 0.0  # from sending a request until an instance can take it
    entry_ms_per_1000: float = 0.0  # likewise, for 1,000 tokens of its prompt


def simulated_loop(
    scene: Scene, beta: Sequence[float], view: LoopView, seeds: int = SEEDS
) -> SimulatedRequests:
    """Simulate a closed loop by the step law; return the requests of a few runs with routing and lengths drawn anew.

    Args:
        scene: with a `ClosedLoad`.
        beta: coefficients of `served-physics` on these GPUs.
        view: the loop's delays beside the servers' steps.
        seeds: runs; one is enough for large loads.

    Raises:
        ConfigError: the model or the GPU is not known, or a request does not fit.
    """
    load = scene.load
    assert isinstance(load, ClosedLoad)
    number = load.concurrency * load.rounds
    runs = [
        list(_one_run(scene.server, load, tuple(beta), view, seed))
        for seed in range(seeds if number < FEW else 1)
    ]
    requests = [request for run in runs for request in run]
    arrival, first, end = (
        np.array([getattr(request, name) for request in requests])
        for name in ("arrival", "first", "end")
    )
    made = np.array([output for run in range(len(runs)) for output in lengths(load, run)[1]])
    return SimulatedRequests(
        arrival / 1e6,
        (first - arrival) / 1e3,
        (end - arrival) / 1e3,
        (end - first) / 1e3 / np.maximum(made - 1, 1),
        load.output,
        np.zeros(len(requests), int),
        run_s=sum(max(request.end for request in run) for run in runs) / 1e6,
    )


def lengths(load: ClosedLoad, seed: int) -> tuple[list[int], list[int]]:
    """Return prompts and outputs of all requests, tokens."""
    number = load.concurrency * load.rounds
    if load.shortest == 1.0:
        return [load.prompt] * number, [load.output] * number
    rng = np.random.default_rng([seed, 1])
    return tuple(
        rng.integers(max(int(load.shortest * most), 1), most + 1, number).tolist()
        for most in (load.prompt, load.output)
    )


def _one_run(
    server: RealServer, load: ClosedLoad, beta: tuple[float, ...], view: LoopView, seed: int
) -> Iterator[Request]:
    prompts, outputs = lengths(load, seed)
    requests = [
        Request(0.0, *lengths_of_request)
        for lengths_of_request in zip(prompts, outputs, strict=True)
    ]
    if load.first_is_cached:
        requests[0].cached = (load.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    entry_ms = view.entry_ms + view.entry_ms_per_1000 * load.prompt / 1e3
    run_loop(_instances(server, beta), requests, load.concurrency, seed, 1e3 * entry_ms)
    return iter(requests)


def _instances(server: RealServer, beta: tuple[float, ...]) -> list[LoopInstance]:
    """Return idle instances; those of pools serve whole requests too, as measured clusters with pools seem to do."""
    groups = [(pool.count, pool.tp) for pool in server.pools] or [(server.num_instances, server.tp)]
    return [
        LoopInstance(
            _numbers(replace(server, tp=tp, pools=()), beta),
            server.max_num_running_reqs,
            server.max_num_scheduled_tokens,
            _memory(replace(server, tp=tp, pools=())),
        )
        for count, tp in groups
        for _ in range(count)
    ]


@functools.cache
def _numbers(server: RealServer, beta: tuple[float, ...]) -> ServedNumbers:
    numbers = ServedNumbers(*vector(beta, deployment_of(server)))
    return numbers._replace(kv_us=numbers.kv_us * _kv_share(server))


def _kv_share(server: RealServer) -> float:
    """Size of the KV cache, that in the precision of the activations being 1."""
    usual = deployment_of(server).model.activation_bytes
    return server.kv_bytes / usual if server.kv_bytes else 1.0


@functools.cache
def _memory(server: RealServer) -> int:
    """Return the tokens that fit beside the weights; with copies of attention, weights are spread over all GPUs."""
    if server.total_kv_blocks or server.data_parallel == 1:
        blocks = server.total_kv_blocks or kv_blocks_of(server) / _kv_share(server)
        return max(int(blocks), 1) * BLOCK_TOKENS
    served = deployment_of(server)
    gpus = server.tp * server.data_parallel
    free = served.gpu.memory_gib * GIB * server.memory_utilization * gpus
    free -= num_parameters(served.model) * served.model.weight_bytes
    if free <= 0:
        raise ConfigError(f"model {server.model} does not fit into {gpus} × {server.hardware}")
    return int(free / (kv_bytes_per_token(served) * server.tp * _kv_share(server)))
