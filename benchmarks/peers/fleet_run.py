"""Run vllm-sr-sim on requests and a linear step law; needs that package and nothing of ours.

Called as a script by another interpreter: JSON on standard input, JSON on the last line of standard output.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any, NamedTuple


class LinearProfile(NamedTuple):
    """A GPU whose iterations take constant + prefill x prompt tokens + decode x the other requests."""

    law: dict[str, float]
    chunk: int
    total_kv_blks: int
    slots: int
    name: str = "linear"
    cost_per_hr: float = 1.0
    blk_size: int = 16

    def iter_latency(self, n_active: int, mean_seq_len: float | None = None) -> float:
        """Return seconds of an iteration that decodes."""
        return (self.law["constant_us"] + self.law["decode_us"] * n_active) / 1e6

    def prefill_iter_latency(
        self,
        chunk_tokens: int,
        kv_history_tokens: float,
        n_active: int,
        mean_seq_len: float | None = None,
    ) -> float:
        """Return seconds of an iteration with a chunk of a prompt."""
        # a prompt shorter than the chunk has half of its own length as mean history
        tokens = min(chunk_tokens, 2 * kv_history_tokens)
        return self.iter_latency(n_active - 1) + self.law["prefill_us"] * tokens / 1e6

    def n_slots(self, max_ctx: int) -> int:
        """Return how many requests run at once."""
        return self.slots


def run(question: dict[str, Any], requests: list[list[float]]) -> dict[str, Any]:
    """Simulate requests (arrival in seconds, prompt and output tokens); return times in ms and CPU seconds."""
    from fleet_sim.core.fleet import Fleet, FleetConfig, PoolConfig
    from fleet_sim.core.request import Request

    began = time.process_time()
    cluster = question["cluster"]
    profile = LinearProfile(
        question["law"],
        cluster["max_num_batched_tokens"],
        cluster["num_blocks"],
        cluster["max_num_seqs"],
    )
    longest = 1 + int(max(prompt + output for _, prompt, output in requests))
    pool = PoolConfig("all", profile, cluster["num_instances"], longest, lb_strategy="round_robin")
    fleet = Fleet(FleetConfig([pool], "LengthRouter", {"threshold": longest}))
    made = [
        Request(index, arrival, int(prompt), int(output))
        for index, (arrival, prompt, output) in enumerate(requests)
    ]
    fleet.run([(each.arrival_time, each) for each in made])
    return {
        "cpu_s": time.process_time() - began,
        "ttft_ms": [1000 * each.ttft for each in made if each.ttft is not None],
        "e2e_ms": [1000 * each.e2e_latency for each in made if each.e2e_latency is not None],
    }


def main() -> None:
    """Read the question from standard input, and print the answer as JSON."""
    question = json.load(sys.stdin)
    import fleet_sim  # noqa: F401

    imported = time.process_time()
    runs = [run(question, requests) for requests in question["runs"]]
    print(json.dumps({"version": version("vllm-sr-sim"), "import_s": imported, "runs": runs}))


if __name__ == "__main__":
    main()
