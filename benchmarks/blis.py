"""Random command lines of BLIS's revision of August 2026, by BLIS and by `blis-jax run`: is all that is printed equal?

python -m benchmarks.blis --repository FOLDER [--program FILE] [--runs N] [--first K]

FOLDER is a checkout of BLIS (it has defaults.yaml), the program its compiled `blis`, in that folder if none is given.
Line K is the same on every machine. A line that both refuse counts as refused. One that only one of them refuses, or
whose texts differ, is printed with the first differences, and the exit code is 1. The seconds of both stand beside it:
BLIS's are wall time of the whole command, ours CPU time within a process that has been started, compiling included.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from blis_jax.backend import prepare_backend
from blis_jax.run import main as run

SCORERS = (
    *("prefix-affinity", "precise-prefix-cache", "no-hit-lru", "queue-depth", "kv-utilization"),
    *("load-balance", "active-requests", "running-requests", "load-aware", "vllm-dp"),
)
CLASSES = ("critical", "standard", "sheddable", "batch", "background")
LLAMA = "meta-llama/llama-3.1-8b-instruct"
LIMIT_S = 25  # for BLIS; some of its runs never end

# an option, how often a line has it, and what it may be; "" for a switch
ANYWHERE: dict[str, tuple[float, tuple[Any, ...]]] = {
    "latency-model": (0.12, ("roofline",)),
    "total-kv-blocks": (0.3, (150, 300, 500, 800, 1500, 3000)),
    "block-size-in-tokens": (0.12, (8, 32, 64)),
    "max-model-len": (0.15, (500, 1300, 2048, 8192)),
    "max-num-batched-tokens": (0.25, (256, 512, 1024, 8192)),
    "max-num-seqs": (0.25, (1, 4, 16, 64)),
    "long-prefill-token-threshold": (0.2, (64, 128, 512)),
    "scheduler": (0.3, ("priority-fcfs", "sjf", "reverse-priority")),
    "preemption-policy": (0.25, ("priority",)),
    "admission-policy": (0.2, ("token-bucket", "tier-shed", "gaie-legacy", "reject-all")),
    "routing-latency": (0.2, (100, 1000, 20000)),
    "admission-latency": (0.12, (100, 5000)),
    "snapshot-refresh-interval": (0.3, (0, 1000, 10000, 200000)),
    "cache-signal-delay": (0.2, (0, 1000, 500000)),
    "kv-cpu-blocks": (0.12, (50, 300, 2000)),
    "horizon": (0.15, (600000, 1700000, 4100000, 7900000)),
    "timeout": (0.15, (-1, 1, 2, 10)),
    "slo-ttft": (0.1, ("critical=100ms,standard=500ms",)),
    "detectors": (0.08, ("all", "composite", "threshold", "backlog-drift")),
}
OF_POOLS: dict[str, tuple[float, tuple[Any, ...]]] = {
    "pd-decider": (1, ("always", "prefix-threshold", "never", "always")),
    "pd-prefix-threshold": (0.4, (0, 100, 300)),
    "pd-transfer-bandwidth": (0.3, (0.5, 5, 100)),
    "pd-transfer-base-latency": (0.3, (0, 1.5, 20)),
    "pd-transfer-contention": (0.3, ("",)),
    "prefill-tp": (0.1, (2, 4)),
    "decode-tp": (0.1, (2, 4)),
    "decode-latency-model": (0.06, ("roofline",)),
    "decode-max-model-len": (0.06, (1000,)),
}
OF_FLOW: dict[str, tuple[float, tuple[Any, ...]]] = {
    "flow-control": (1, ("",)),
    "saturation-detector": (0.85, ("concurrency", "utilization")),
    "max-concurrency": (0.6, (2, 5, 16, 50)),
    "dispatch-order": (0.6, ("fifo", "priority", "slo-deadline")),
    "fairness-policy": (0.4, ("global-strict", "round-robin")),
    "dispatch-tick-interval": (0.3, (500, 5000, 50000)),
    "max-gateway-queue-depth": (0.3, (3, 10, 40)),
    "per-band-capacity": (0.3, (2, 8, 30)),
    "queue-shedding": (0.25, ("",)),
    "in-flight-eviction": (0.2, ("",)),
    "request-ttl": (0.3, (100000, 1000000)),
    "usage-limit-threshold": (0.3, (0.3, 0.7)),
}


def line(number: int, folder: Path) -> list[str]:
    """Return the options of one command line; its workload file is written into the folder."""
    draw = random.Random(7_000_021 + number)

    def some(table: dict[str, tuple[float, tuple[Any, ...]]]) -> list[str]:
        given = [
            (name, draw.choice(values)) for name, (p, values) in table.items() if p > draw.random()
        ]
        return [word for name, value in given for word in (f"--{name}", str(value)) if word]

    count = draw.choice((1, 1, 2, 3, 4, 4, 8))
    words = [*_model(draw), "--num-instances", str(count), *some(ANYWHERE)]
    words += ["--seed", str(draw.randint(1, 10000))] if draw.random() < 0.93 else []
    if count > 1 and draw.random() < 0.8:
        policy = draw.choice(("weighted", "weighted", "weighted", "least-loaded", "always-busiest"))
        words += ["--routing-policy", policy]
        if policy == "weighted" and draw.random() < 0.7:
            words += ["--routing-scorers", _scorers(draw)]
    if count > 1 and draw.random() < 0.22:
        prefill = draw.randint(1, count - 1)
        words += ["--prefill-instances", str(prefill)]
        words += ["--decode-instances", str(draw.randint(1, count - prefill)), *some(OF_POOLS)]
        for pool in ("prefill", "decode"):
            words += [f"--{pool}-routing-scorers", _scorers(draw)] if draw.random() < 0.3 else []
    words += some(OF_FLOW) if draw.random() < 0.2 else []
    return words + _requests(draw, folder / f"{number}.yaml")


def _model(draw: random.Random) -> list[str]:
    model = draw.choice(
        (*(LLAMA,) * 6, "qwen/qwen2.5-7b-instruct", "qwen/qwen3-14b", "dense", "moe")
    )
    if model == "moe":
        dp = ["--dp", draw.choice("24")] if draw.random() < 0.6 else []
        return [
            "--model",
            "qwen/qwen3-30b-a3b",
            "--hardware",
            "H100",
            "--tp",
            draw.choice("12"),
            *dp,
        ]
    if model == "dense":
        return [
            "--model",
            "mistralai/mixtral-8x7b-v0.1",
            "--hardware",
            "H100",
            "--tp",
            draw.choice("24"),
        ]
    gpu = draw.choice(("H100", "A100-SXM", "A100-80", "L40S"))
    of_gpu = ["--hardware", gpu] if draw.random() < 0.4 else []
    return [
        "--model",
        model,
        *of_gpu,
        *(["--tp", draw.choice("124")] if draw.random() < 0.3 else []),
    ]


def _scorers(draw: random.Random) -> str:
    chosen = draw.sample(SCORERS, draw.randint(1, 4))
    return ",".join(f"{name}:{draw.choice((1, 2, 3, 0.5, 1.7))}" for name in chosen)


def _requests(draw: random.Random, path: Path) -> list[str]:
    kind = draw.random()
    if kind < 0.72:
        path.write_text(yaml.safe_dump(_workload(draw), sort_keys=False))
        return ["--workload-spec", str(path)]
    number = ["--num-requests", draw.choice(("30", "100"))]
    if kind < 0.8:
        name = draw.choice(("chatbot", "contentgen", "summarization", "multidoc"))
        return ["--workload", name, "--rate", draw.choice(("2", "10", "30")), *number]
    lengths = ["--prompt-tokens", "200", "--output-tokens", "60", "--output-tokens-stdev", "20"]
    if kind < 0.88:
        think = ["--think-time-ms", draw.choice(("10", "500"))] if draw.random() < 0.5 else []
        return ["--concurrency", draw.choice(("1", "4", "20")), *number, *think, *lengths]
    prefix = ["--prefix-tokens", draw.choice(("16", "200", "777"))] if draw.random() < 0.3 else []
    return ["--rate", draw.choice(("1", "5", "20", "80", "300")), *number, *prefix, *lengths]


def _workload(draw: random.Random) -> dict[str, Any]:
    has_sessions, has_classes = draw.random() < 0.25, draw.random() < 0.8
    has_users = not has_sessions and draw.random() < 0.15
    longest = 4000 if draw.random() < 0.2 else 700
    clients = []
    for index in range(draw.randint(1, 4)):
        client: dict[str, Any] = {
            "id": f"c{index}",
            "tenant_id": draw.choice(("a", "b", "")),
            "slo_class": draw.choice(CLASSES) if has_classes else "",
            "input_distribution": _law(draw, 20, longest),
            "output_distribution": _law(draw, 2, 250),
        }
        if has_users and draw.random() < 0.6:
            client |= {"concurrency": draw.randint(1, 12), "think_time_us": draw.randint(0, 400000)}
        else:
            client |= {"rate_fraction": round(draw.uniform(0.1, 1), 2), "arrival": _arrival(draw)}
        if draw.random() < 0.4:
            client |= {
                "prefix_group": draw.choice("gh"),
                "prefix_length": draw.choice((16, 100, 512)),
            }
        if draw.random() < 0.15:
            client["timeout"] = draw.choice((0, 200000, 1000000, 3000000))
        if has_sessions and draw.random() < 0.7:
            client |= _sessions(draw)
        elif not has_users and draw.random() < 0.12:
            client["lifecycle"] = {"windows": _windows(draw)}
        clients.append(client)
    return {
        **{"version": "2", "seed": draw.randint(1, 99), "clients": clients},
        "category": "reasoning" if has_sessions else "language",
        "aggregate_rate": round(10 ** draw.uniform(0.3, 2.3), 2),
        "num_requests": draw.choice((30, 60, 100, 150, 200)),
    }


def _law(draw: random.Random, least: int, most: int) -> dict[str, Any]:
    mean = draw.randint(least, most)
    normal = {"mean": mean, "std_dev": max(1, mean // 4), "min": max(1, mean // 8), "max": 2 * mean}
    log = {
        "mu": round(math.log(mean), 3),
        "sigma": round(draw.uniform(0.1, 0.9), 3),
        "min": 1,
        "max": 4 * mean,
    }
    shares = {str(max(1, mean // 2)): 0.3, str(mean): 0.5, str(2 * mean): 0.2}
    laws = {
        **{"gaussian": normal, "exponential": {"mean": mean}, "constant": {"value": mean}},
        **{"lognormal": log, "empirical": shares},
    }
    name = draw.choice(("gaussian", *laws))
    return {"type": name, "params": laws[name]}


def _arrival(draw: random.Random) -> dict[str, Any]:
    process = draw.choice(("poisson", "poisson", "gamma", "weibull", "constant"))
    has_cv = process in ("gamma", "weibull")
    return {"process": process, **({"cv": round(draw.uniform(0.3, 4), 2)} if has_cv else {})}


def _sessions(draw: random.Random) -> dict[str, Any]:
    turns = {
        "max_rounds": draw.randint(1, 6),
        "think_time_us": draw.choice((0, 1000, 200000, 1000000)),
        "context_growth": draw.choice(("accumulate", "accumulate", "")),
        "single_session": draw.random() < 0.2,
    }
    ratio = {"type": "constant", "params": {"value": draw.choice((0, 0, 20, 50))}}
    closed = {"closed_loop": draw.random() < 0.5} if draw.random() < 0.4 else {}
    return {"reasoning": {"reason_ratio_distribution": ratio, "multi_turn": turns}, **closed}


def _windows(draw: random.Random) -> list[dict[str, Any]]:
    ends = list(
        itertools.accumulate(draw.randint(100000, 3000000) for _ in range(2 * draw.randint(1, 3)))
    )
    windows: list[dict[str, Any]] = [
        {"start_us": start, "end_us": end} for start, end in zip(ends[::2], ends[1::2], strict=True)
    ]
    for window in windows:
        window |= {"trace_rate": round(draw.uniform(5, 60), 1)} if draw.random() < 0.7 else {}
        window |= {"arrival": _arrival(draw)} if draw.random() < 0.3 else {}
    return windows


def ours(words: list[str]) -> tuple[bool, str, str]:
    """Return whether `blis-jax run` made the run, what it printed, and what it said beside."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        code: object
        try:
            code = run(["--profile", "blis-2026-08", *words])
        except SystemExit as stopped:
            code = stopped.code
    return not code, printed.getvalue(), said.getvalue()


def verdict(theirs: subprocess.CompletedProcess[str], made: bool, printed: str, said: str) -> str:
    """Return what a line came to, with the first lines that differ."""
    if theirs.returncode or not made:
        if theirs.returncode and not made:
            return "refused"
        who, text = ("BLIS", theirs.stderr) if theirs.returncode else ("blis-jax", said)
        return f"refused by {who} alone: {text.strip().splitlines()[-1]}"
    pairs = itertools.zip_longest(theirs.stdout.splitlines(), printed.splitlines(), fillvalue="")
    different = [f"\n  BLIS {a.strip()} | blis-jax {b.strip()}" for a, b in pairs if a != b]
    return "different:" + "".join(different[:4]) if different else "equal"


def main(argv: list[str] | None = None) -> int:
    """Compare the lines; 1 if some are not equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blis", description=__doc__)
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args(argv)
    program = (asked.program or asked.repository / "blis").resolve()
    if not program.is_file() or not (asked.repository / "defaults.yaml").is_file():
        parser.error(f"{program} and {asked.repository}/defaults.yaml: one of them is not there")
    prepare_backend()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.first, asked.first + asked.runs):
            words, began = line(number, Path(folder)), time.perf_counter()
            try:
                theirs = subprocess.run(
                    *([program, "run", *words],), cwd=asked.repository, capture_output=True, text=True,
                    timeout=LIMIT_S, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                found = f"no end: BLIS ran for {LIMIT_S} s"
            else:
                wall, cpu = time.perf_counter() - began, time.process_time()
                found = verdict(theirs, *ours(words))
                found += f" ({wall:.2f} s, {time.process_time() - cpu:.1f} s)"
            counts[found.split(":")[0].split(" (")[0]] += 1
            print(number, found, "" if found.startswith("equal") else " ".join(words), flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.most_common()))
    return 0 if counts.keys() <= {"equal", "refused"} else 1


if __name__ == "__main__":
    sys.exit(main())
