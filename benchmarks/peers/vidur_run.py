"""Run Vidur on requests and a linear step law; needs the package `vidur` and nothing of ours.

Called as a script by another interpreter: JSON on standard input, JSON on the last line of standard output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any


def linear_predictor(law: dict[str, float]) -> type:
    """Return a predictor whose step takes constant + prefill x prompt tokens + decode x decoding requests."""
    from vidur._native.entities import ExecutionTime
    from vidur.execution_time_predictor.base_execution_time_predictor import (
        BaseExecutionTimePredictor as Base,
    )

    def get_execution_time(self: Any, batch: Any, pipeline_stage: int) -> Any:
        """Return the time of a batch by the law; the method's name is Vidur's."""
        prompt = decoding = 0
        for request, tokens in zip(batch.requests, batch.num_q_tokens, strict=True):
            if request.is_prefill_complete:
                decoding += 1
            else:
                prompt += tokens
        step = law["constant_us"] + law["prefill_us"] * prompt + law["decode_us"] * decoding
        return ExecutionTime(1, *[0.0] * 6, step / 1000, *[0.0] * 7)  # a layer's part, in ms

    methods = {name: (lambda self, batch: 0.0) for name in Base.__abstractmethods__}
    return type("Linear", (Base,), {**methods, "get_execution_time": get_execution_time})


def configuration(cluster: dict[str, int], folder: str) -> Any:
    """Return Vidur's configuration: its chunked scheduler with vLLM's limits, round robin, no files."""
    from vidur import config

    return config.SimulationConfig(
        cluster_config=config.ClusterConfig(
            num_replicas=cluster["num_instances"],
            replica_config=config.ReplicaConfig(
                model_name="meta-llama/Llama-2-7b-hf", num_pipeline_stages=1, tensor_parallel_size=1
            ),
            global_scheduler_config=config.RoundRobinGlobalSchedulerConfig(),
            replica_scheduler_config=config.SarathiSchedulerConfig(
                batch_size_cap=cluster["max_num_seqs"],
                chunk_size=cluster["max_num_batched_tokens"],
            ),
            cache_config=config.CacheConfig(
                block_size=16, num_blocks=cluster["num_blocks"], watermark_blocks_fraction=0.0
            ),
        ),
        request_generator_config=config.SyntheticRequestGeneratorConfig(num_requests=1),
        metrics_config=config.MetricsConfig(
            output_dir=folder,
            **dict.fromkeys(
                ("write_metrics", "enable_chrome_trace", "store_plots", "store_request_metrics",
                 "store_batch_metrics", "store_utilization_metrics"), False,
            ),
        ),
    )  # fmt: skip


def run(settings: Any, requests: list[list[float]]) -> dict[str, Any]:
    """Simulate requests (arrival in seconds, prompt and output tokens); return times in ms and CPU seconds."""
    from vidur.entities import Replica, Request
    from vidur.events import RequestArrivalEvent
    from vidur.simulator import Simulator

    Replica._id = -1  # its round robin counts on replicas from 0, also in a second run
    began = time.process_time()
    simulator = Simulator(settings)
    made = [Request(arrival, int(prompt), int(output)) for arrival, prompt, output in requests]
    simulator._event_queue.clear()
    for request in made:
        simulator._add_event(RequestArrivalEvent(request.arrived_at, request))
    simulator.run()
    return {
        "cpu_s": time.process_time() - began,
        "ttft_ms": [1000 * (each.prefill_completed_at - each.arrived_at) for each in made],
        "e2e_ms": [1000 * (each.completed_at - each.arrived_at) for each in made],
    }


def main() -> None:
    """Read the question from standard input, and print the answer as JSON."""
    question = json.load(sys.stdin)
    os.environ["WANDB_MODE"] = "disabled"
    from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
    from vidur.types import ExecutionTimePredictorType

    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(kind)
    ExecutionTimePredictorRegistry.register(kind, linear_predictor(question["law"]))
    imported = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        settings = configuration(question["cluster"], folder)
        runs = [run(settings, requests) for requests in question["runs"]]
    print(json.dumps({"version": version("vidur"), "import_s": imported, "runs": runs}))


if __name__ == "__main__":
    main()
