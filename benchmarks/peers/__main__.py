"""This simulator beside Vidur and vllm-sr-sim: requests per CPU second, TTFT and E2E on the same requests.

python -m benchmarks.peers --python out/peers/bin/python           the table on stdout
python -m benchmarks.peers --python out/peers/bin/python --write   the same, and into docs/results/speed.md

The other simulators run in an environment of their own, with the packages of the extra `peers`. Make it once:

python -m venv out/peers && out/peers/bin/pip install vidur==0.0.26 vllm-sr-sim==0.1.0.dev20260713123629

All get the same requests, drawn here, four servers with vLLM's limits, dealt to in turn, and a step that takes
constant + prefill x prompt tokens + decode x decoding requests. Imports and compiling stand apart from running.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_jax import ClusterConfig, __version__, load_spec, override, run_grid
from blis_jax.backend import prepare_backend
from blis_jax.records.record import RunRecord
from blis_jax.reports.render import table_text
from papers.pages import ROOT, hand_over, refuse, table_parser

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "results" / "speed.md"
LAW = {"constant_us": 7000.0, "prefill_us": 20.0, "decode_us": 25.0}
CLUSTER = {
    "num_instances": 4, "max_num_seqs": 128, "max_num_batched_tokens": 512, "num_blocks": 20_000,
}  # fmt: skip
PEERS = {"Vidur": "vidur_run.py", "vllm-sr-sim": "fleet_run.py"}
TIMEOUT_S = 1800
RATES = (20.0, 60.0, 90.0)
REPETITIONS = 5  # of a call that takes a tenth of a second
HEAD = (
    "requests/s", "simulator", "requests per CPU second", "before the first run, CPU s",
    "TTFT mean, ms", "TTFT P99, ms", "E2E mean, ms", "E2E P99, ms",
)  # fmt: skip


class Runs(NamedTuple):
    """What one simulator did with all runs; times in ms, `[seed][request]`."""

    name: str
    version: str
    start_s: float  # CPU seconds before the first run: imports, and compiling
    cpu_s: float  # of all runs
    ttft_ms: list[list[float]]
    e2e_ms: list[list[float]]


def ours(
    rate: float, num_requests: int, seeds: Sequence[int]
) -> tuple[Runs, list[list[list[float]]]]:
    """Simulate all seeds in one call; return the runs, and each seed's requests for the others."""
    config = ClusterConfig(
        num_instances=CLUSTER["num_instances"],
        max_num_running_reqs=CLUSTER["max_num_seqs"],
        max_num_scheduled_tokens=CLUSTER["max_num_batched_tokens"],
        total_kv_blocks=CLUSTER["num_blocks"],
        long_prefill_token_threshold=0,
        enable_prefix_caching=False,
        kv_cpu_blocks=0,
        alpha_coeffs=(0.0, 0.0, 0.0),
        beta_coeffs=tuple(LAW.values()),
        routing_policy="round-robin",
        corrected=True,
    )
    spec = override(
        load_spec(HERE / "workload.yaml"), aggregate_rate=rate, num_requests=num_requests
    )

    def seconds_of() -> tuple[float, tuple[RunRecord, ...]]:
        began = time.process_time()
        grid = run_grid([config], spec, seeds, lambda record: record)
        return time.process_time() - began, grid.rows[0]

    imported = time.process_time()
    first_s, _ = seconds_of()
    cpu_s, records = min((seconds_of() for _ in range(REPETITIONS)), key=itemgetter(0))
    requests = [each.requests for each in records]
    runs = Runs(
        "blis_jax",
        __version__,
        imported + first_s - cpu_s,
        cpu_s,
        [(each.ttft_us / 1000).tolist() for each in requests],
        [(each.e2e_us / 1000).tolist() for each in requests],
    )
    drawn = [
        np.stack([each.arrival_us / 1e6, each.input_len, each.output_len], axis=1).tolist()
        for each in requests
    ]
    return runs, drawn


def of_peer(python: str, name: str, requests: list[list[list[float]]]) -> Runs:
    """Run another simulator on the requests, in its own environment.

    Raises:
        RuntimeError: it ended with an error.
    """
    question = json.dumps({"law": LAW, "cluster": CLUSTER, "runs": requests})
    done = subprocess.run(
        [python, str(HERE / PEERS[name])],
        input=question, text=True, capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(
            f"{name} ended with an error: {(done.stderr.splitlines() or ['no word'])[-1]}"
        )
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    cpu_s = sum(run["cpu_s"] for run in said["runs"])
    times = [[run[key] for run in said["runs"]] for key in ("ttft_ms", "e2e_ms")]
    return Runs(name, said["version"], said["import_s"], cpu_s, *times)


def _figure(times: list[list[float]], beside: list[list[float]], percentile: int | None) -> str:
    """Return mean ± standard deviation over seeds, and the difference to the times beside it."""

    def of(runs: list[list[float]]) -> np.ndarray:
        reduce = np.mean if percentile is None else lambda run: np.percentile(run, percentile)
        return np.array([reduce(run) for run in runs])

    here, there = of(times), of(beside)
    apart = "" if times is beside else f" ({100 * (here.mean() / there.mean() - 1):+.2f} %)"
    return f"{here.mean():,.1f} ± {here.std(ddof=1):.1f}{apart}"


def rows(rate: float, runs: Sequence[Runs]) -> list[tuple[str, ...]]:
    """Return a row for each simulator at a rate; differences are to the first one."""
    first = runs[0]
    speed = [sum(map(len, each.ttft_ms)) / each.cpu_s for each in runs]
    return [
        (
            f"{rate:g}",
            f"{each.name} {each.version}",
            f"{speed[at]:,.0f}" + (f" (1/{speed[0] / speed[at]:.0f})" if 2 * speed[at] < speed[0] else ""),
            f"{each.start_s:.1f}",
            *(
                _figure(times, beside, percentile)
                for times, beside in ((each.ttft_ms, first.ttft_ms), (each.e2e_ms, first.e2e_ms))
                for percentile in (None, 99)
            ),
        )
        for at, each in enumerate(runs)
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = table_parser("benchmarks.peers", __doc__, f"docs/results/{PAGE.name}")
    parser.add_argument("--python", required=True, help="interpreter of the others' environment")
    parser.add_argument(
        "--rate", type=float, action="append", help="requests/s (20, then 60 and 90)"
    )
    parser.add_argument("--num-requests", type=int, default=1000, help="requests of a run (1000)")
    parser.add_argument("--num-seeds", type=int, default=8, help="runs, each of its own seed (8)")
    parser.add_argument("--peer", choices=PEERS, action="append", help="this one alone; repeat it")
    options = parser.parse_args(arguments)
    if not Path(options.python).exists():
        return refuse(f"there is no interpreter {options.python}; --help says how to make it")
    prepare_backend()
    lines: list[tuple[str, ...]] = []
    try:
        for rate in options.rate or RATES:
            runs, requests = ours(rate, options.num_requests, range(options.num_seeds))
            others = [of_peer(options.python, name, requests) for name in options.peer or PEERS]
            lines += rows(rate, [runs, *others])
    except RuntimeError as error:
        return refuse(str(error))
    return hand_over(table_text(HEAD, lines), PAGE if options.write else None, "peers")


if __name__ == "__main__":
    sys.exit(main())
