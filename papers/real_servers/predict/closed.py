"""Closed loops of real servers by the step law: instances and requests for `segments`, and what came out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.latency.deployment import GIB, kv_bytes_per_token, num_parameters
from blis_jax.latency.served_physics import ServedNumbers, vector
from papers.real_servers.predict.scene import ClosedLoad, RealServer, Scene
from papers.real_servers.predict.segments import LoopInstance, Request, run_loop
from papers.real_servers.predict.simulation import (
    BLOCK_TOKENS,
    SimulatedRequests,
    deployment_of,
    kv_blocks_of,
)

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
        view: what is known of such loops.
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
    requests = [Request(0.0, *one) for one in zip(prompts, outputs, strict=True)]
    if load.first_is_cached:
        requests[0].cached = (load.prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    entry_ms = view.entry_ms + view.entry_ms_per_1000 * load.prompt / 1e3
    run_loop(
        _instances(server, beta),
        requests,
        load.concurrency,
        seed,
        1e3 * entry_ms,
    )
    return iter(requests)


def _instances(server: RealServer, beta: tuple[float, ...]) -> list[LoopInstance]:
    """Return idle instances; those of pools serve whole requests too, as measured clusters with pools seem to do."""
    groups = [(one.count, one.tp) for one in server.pools] or [(server.num_instances, server.tp)]
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
    """Tokens that fit beside the weights; where attention is copied, the weights are spread over all GPUs."""
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
