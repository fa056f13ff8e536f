"""Random command lines of BLIS's revision of August 2026, for `benchmarks.blis`: every option that changes results.

Options that decide the compiled program are drawn once for `LINES` consecutive lines; numbers and workloads differ
between these lines.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.blis import files, workloads
from benchmarks.blis.workloads import GPUS, LLAMA, Draw, workload

Table = dict[str, tuple[float, tuple[Any, ...]]]

LINES = 16
OUT = "OUT/"  # stands for the folder into which a program writes
METRICS = "m.json"  # the file of metrics there
SCORERS = (
    *("prefix-affinity", "precise-prefix-cache", "no-hit-lru", "queue-depth", "kv-utilization"),
    *("load-balance", "active-requests", "running-requests", "load-aware", "vllm-dp"),
)
DENSE = ("qwen/qwen2.5-7b-instruct", "qwen/qwen3-14b", "01-ai/yi-34b", "meta-llama/llama-2-7b-hf")
BACKENDS = (
    *("naive", "allgather_reducescatter", "pplx", "deepep_high_throughput", "deepep_low_latency"),
    *("mori", "flashinfer_all2allv"),
)
# their value decides the program, not only whether they are given
OF_PROGRAM = frozenset({
    *("admission-policy", "block-size-in-tokens", "decode-latency-model", "detectors", "dispatch-order"),
    *("encode-decider", "fairness-policy", "latency-model", "pd-decider", "prefill-latency-model", "routing-policy"),
    *("saturation-detector", "scheduler", "preemption-policy", "max-num-seqs", "total-kv-blocks"),
})  # fmt: skip

# an option, how often a line has it, and what it may be; "" for a switch
ANYWHERE: Table = {
    "latency-model": (0.15, ("roofline", "trained-physics")),
    "total-kv-blocks": (0.4, ((20, 45, 70), (90, 150, 200), (300, 500, 800), (1500, 3000))),
    "block-size-in-tokens": (0.15, (1, 8, 32, 64, 300)),
    "max-model-len": (0.2, (60, 500, 1300, 2048, 8192)),
    "max-num-batched-tokens": (0.3, (17, 256, 512, 1024, 8192, 100000)),
    "max-num-seqs": (0.25, (1, 3, 16, 64, 1024)),
    "long-prefill-token-threshold": (0.25, (13, 64, 128, 512)),
    "scheduler": (0.35, ("priority-fcfs", "sjf", "reverse-priority", "fcfs")),
    "preemption-policy": (0.3, ("priority", "priority", "fcfs")),
    "admission-policy": (0.25, ("token-bucket", "token-bucket", "tier-shed", "gaie-legacy", "reject-all")),
    "token-bucket-capacity": (0.1, (300, 5000, 20000.5)),
    "token-bucket-refill-rate": (0.1, (50, 3000.5, 20000)),
    "routing-latency": (0.2, (1, 100, 1000, 20000)),
    "admission-latency": (0.15, (1, 100, 5000)),
    "snapshot-refresh-interval": (0.3, (0, 1, 1000, 10000, 200000)),
    "cache-signal-delay": (0.25, (0, 1, 1000, 500000)),
    "kv-cpu-blocks": (0.12, (5, 50, 300, 2000)),
    "kv-offload-threshold": (0.05, (0, 0.2, 0.5, 1)),
    "kv-transfer-bandwidth": (0.05, (0.01, 1, 50)),
    "kv-transfer-base-latency": (0.05, (10, 5000)),
    "horizon": (0.2, (1, 150000, 600000, 1700000, 4100000, 7900000)),
    "timeout": (0.15, (-1, 1, 2, 10)),
    "gpu-memory-utilization": (0.08, (0.5, 0.85, 1)),
    "slo-ttft": (0.1, ("critical=100ms,standard=500ms", "default=40ms,batch=1s")),
    "slo-itl": (0.05, ("critical=12ms,standard=20ms,default=9ms",)),
    "slo-e2e": (0.05, ("critical=1s,standard=2500ms,default=3s", "background=2s")),
    "detectors": (0.05, ("composite", "threshold", "backlog-drift", "threshold,backlog-drift")),
    "fitness-weights": (0.08, ("throughput:0.5,p99_ttft:0.3", "mean_ttft:1", "tokens_per_sec:1,p95_ttft:0.2")),
    "counterfactual-k": (0.08, (1, 3)),
    "lazy-generation": (0.05, ("",)),
}  # fmt: skip
OF_POOLS: Table = {
    "pd-decider": (1, ("always", "prefix-threshold", "never", "always")),
    "pd-prefix-threshold": (0.4, (0, 100, 300)),
    "pd-transfer-bandwidth": (0.3, (0.01, 0.5, 5, 100)),
    "pd-transfer-base-latency": (0.3, (0, 1.5, 20, 700)),
    "pd-transfer-contention": (0.3, ("",)),
    "prefill-tp": (0.1, (2, 4)),
    "decode-tp": (0.1, (2, 4)),
    "prefill-hardware": (0.06, GPUS),
    "decode-hardware": (0.06, GPUS),
    "prefill-latency-model": (0.06, ("roofline", "trained-physics")),
    "decode-latency-model": (0.06, ("roofline", "trained-physics")),
    "prefill-max-model-len": (0.06, (300, 1000)),
    "decode-max-model-len": (0.06, (300, 1000)),
}
OF_FLOW: Table = {
    "flow-control": (1, ("",)),
    "saturation-detector": (0.85, ("concurrency", "utilization")),
    "max-concurrency": (0.6, (1, 2, 5, 16, 50)),
    "queue-depth-threshold": (0.3, (0.5, 1, 20)),
    "kv-cache-util-threshold": (0.3, (0.05, 0.2, 0.5)),
    "dispatch-order": (0.6, ("fifo", "priority", "slo-deadline")),
    "slo-targets": (0.3, ("critical=100000,standard=500000", "batch=1,background=1")),
    "fairness-policy": (0.4, ("global-strict", "round-robin")),
    "dispatch-tick-interval": (0.3, (0, 1, 500, 5000, 50000)),
    "max-gateway-queue-depth": (0.3, (1, 3, 10, 40)),
    "per-band-capacity": (0.3, (1, 2, 8, 30)),
    "queue-shedding": (0.25, ("",)),
    "in-flight-eviction": (0.25, ("",)),
    "request-ttl": (0.3, (1, 100000, 1000000)),
    "usage-limit-threshold": (0.3, (0.05, 0.3, 0.7)),
}
OF_ADAPTERS: Table = {
    "lora-adapter-capacity": (0.5, (1, 2, 3, 8)),
    "lora-load-base-latency-us": (0.2, (0, 300.5, 90000)),
    "lora-load-bandwidth-bytes-us": (0.2, (500, 30000.5)),
    "lora-footprint-bytes-per-rank": (0.2, (1000, 3e6)),
}
OF_SIMPLE: Table = {
    "prefix-tokens": (0.25, (1, 16, 200, 777)),
    "prompt-tokens-stdev": (0.4, (40, 240)),
    "prompt-tokens-min": (0.3, (1, 40)),
    "prompt-tokens-max": (0.2, (250, 5000)),
    "output-tokens-stdev": (0.7, (5, 20, 60)),
    "output-tokens-min": (0.3, (1, 5)),
    "output-tokens-max": (0.2, (65, 300)),
}
RATES = ("1", "5", "20", "80", "300", "1000000")


class Line(NamedTuple):
    """One comparison: `command` with `words`; BLIS alone runs `first` before, to write the files that `words` name."""

    command: tuple[str, ...]
    words: list[str]
    first: list[str]


def line(number: int, folder: Path) -> Line:
    """Draw one command line, and write the files that it names, except those that its `first` command writes."""
    draw = Draw(number, LINES)
    kind = draw.shape.random()
    if kind < 0.04:
        return Line(*files.converted(draw, folder / str(number)), [])
    cluster, adapters = _cluster(draw, folder / str(number), {"timeout"} if kind < 0.17 else set())
    if kind < 0.17:
        tiers = [word for word in cluster if "offload" in word and "threshold" not in word]
        if draw.has(0.5):  # what the trace says of them counts
            cluster = [word for word in cluster if word not in tiers]
        trace = str(folder / f"{number}t")
        drawn = _requests(draw, folder / f"{number}.yaml", ())
        first = [*_model_of(cluster), *drawn, *tiers, "--trace-output", trace]
        read = ["--trace-header", f"{trace}.yaml", "--trace-data", f"{trace}.csv"]
        return Line(
            ("replay",),
            [*cluster, *read, *_replay(draw), *_files(draw, folder / f"{number}.saturation.yaml")],
            first,
        )
    words = [
        *cluster,
        *_requests(draw, folder / f"{number}.yaml", adapters),
        *_files(draw, folder / f"{number}.saturation.yaml"),
    ]
    return Line(("run",), words, [])


def _model_of(words: list[str]) -> list[str]:
    kept = (
        *("--model", "--hardware", "--tp"),
        *("--defaults-filepath", "--model-config-folder", "--hardware-config"),
    )
    pairs = itertools.pairwise(words)
    return [word for name, value in pairs if name in kept for word in (name, value)]


def _files(draw: Draw, path: Path) -> list[str]:
    written = ["--trace-output", f"{OUT}t"] if draw.has(0.3) else []
    written += ["--metrics-path", f"{OUT}{METRICS}"] if draw.has(0.4) else []
    shown = ["--trace-level", "decisions", "--summarize-trace"] if draw.has(0.15) else []
    if draw.has(0.12):
        written += ["--detectors", "all", "--saturation-report", f"{OUT}s.json"]
        written += (
            ["--saturation-final-window", draw.value.choice(("1s", "250ms"))]
            if draw.has(0.5)
            else []
        )
        if draw.has(0.5):
            files.saturation(draw, path)
            written += ["--saturation-config", str(path)]
    return written + shown


def _replay(draw: Draw) -> list[str]:
    words = ["--results-path", f"{OUT}r.json"] if draw.has(0.4) else []
    if draw.has(0.35):
        words += ["--session-mode", "closed-loop"]
        laws = ("constant:value=50ms", "lognormal:mu=1.0,sigma=0.6,min=5ms,max=2s")
        if draw.has(0.5):
            words += ["--think-time-ms", str(draw.value.choice((0, 10, 700)))]
        elif draw.has(0.5):
            words += ["--think-time-dist", draw.value.choice(laws)]
    return words


def _cluster(draw: Draw, path: Path, without: set[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return options of the cluster, except those in `without`, and its adapters."""
    count = draw.shape.choice((1, 1, 2, 3, 4, 4, 8))
    words = [
        *_model(draw),
        "--num-instances",
        str(count),
        *draw.options(ANYWHERE, OF_PROGRAM, without),
    ]
    words += ["--seed", str(draw.value.randint(1, 10000))] if draw.has(0.93) else []
    is_weighted = False
    if count > 1 and draw.has(0.8):
        policy = draw.shape.choice(("weighted",) * 3 + ("least-loaded", "always-busiest"))
        is_weighted = policy == "weighted"
        words += ["--routing-policy", policy]
        words += ["--routing-scorers", scorers(draw)] if is_weighted and draw.has(0.7) else []
    if count > 1 and draw.has(0.35):
        words += _pools(draw, count)
    words += draw.options(OF_FLOW, OF_PROGRAM) if draw.has(0.3) else []
    adapters: tuple[str, ...] = ()
    if draw.has(0.2):
        adapters = files.adapters(draw, path.with_suffix(".lora.yaml"))
        words += ["--lora-config", str(path.with_suffix(".lora.yaml"))]
        words += draw.options(OF_ADAPTERS, OF_PROGRAM)
        words += ["--lora-scorer-weight", "1.5"] if is_weighted and draw.has(0.6) else []
    if "--kv-cpu-blocks" not in words and draw.has(0.18):
        devices = files.DEVICES
        if draw.has(0.4):
            model = words[words.index("--model") + 1]
            named, devices = files.defaults(draw, model, path.with_suffix(".defaults.yaml"))
            words += named
        files.offload(draw, path.with_suffix(".offload.yaml"), devices)
        words += ["--kv-offload-config", str(path.with_suffix(".offload.yaml"))]
    if draw.has(0.22):
        workloads.policies(draw, path.with_suffix(".policies.yaml"))
        words += ["--policy-config", str(path.with_suffix(".policies.yaml"))]
        words += ["--model-autoscaler-interval-us", "300000"] if draw.has(0.1) else []
    return words, adapters


def _pools(draw: Draw, count: int) -> list[str]:
    prefill = draw.shape.randint(1, count - 1)
    decode = draw.shape.randint(1, count - prefill)
    words = ["--prefill-instances", str(prefill), "--decode-instances", str(decode)]
    left = count - prefill - decode
    words += ["--prefill-decode-instances", str(left)] if left and draw.has(0.4) else []
    if count - prefill - decode and "--prefill-decode-instances" not in words and draw.has(0.4):
        decider = draw.shape.choice(("always", "multimodal", "never"))
        words += ["--encode-instances", "1", "--encode-decider", decider]
    words += draw.options(OF_POOLS, OF_PROGRAM)
    for pool in ("prefill", "decode"):
        words += [f"--{pool}-routing-scorers", scorers(draw)] if draw.has(0.3) else []
    return words


def _model(draw: Draw) -> list[str]:
    name = draw.shape.choice((*(LLAMA,) * 8, *DENSE, "mixtral", "moe", "moe"))
    if name == "moe":
        words = f"--model qwen/qwen3-30b-a3b --hardware H100 --tp {draw.value.choice('12')}".split()
        words += ["--dp", draw.value.choice("24")] if draw.has(0.6) else []
        words += ["--enable-expert-parallel"] if draw.has(0.4) else []
        return words + (
            ["--moe-comm-backend", draw.value.choice(BACKENDS)] if draw.has(0.5) else []
        )
    if name == "mixtral":
        return f"--model mistralai/mixtral-8x7b-v0.1 --hardware H100 --tp {draw.value.choice('24')}".split()
    of_gpu = ["--hardware", draw.value.choice(GPUS)] if name != LLAMA or draw.has(0.5) else []
    of_tp = ["--tp", draw.value.choice("124")] if name != LLAMA or draw.has(0.4) else []
    words = ["--model", name, *of_gpu, *of_tp]
    if draw.has(0.08):
        alpha = [round(draw.value.uniform(0, top), 3) for top in (20000, 900, 90)]
        beta = [round(draw.value.uniform(0, top), 4) for top in (1, 1, 2, 1, 40, 9, 200, 500, 1, 2)]
        coefficients = beta[: draw.value.choice((7, 8, 9, 10))]
        words += [
            "--alpha-coeffs",
            ",".join(map(str, alpha)),
            "--beta-coeffs",
            ",".join(map(str, coefficients)),
        ]
    return words


def scorers(draw: Draw, names: tuple[str, ...] = SCORERS) -> str:
    """Draw one to four of the scorers with weights, in the form of `--routing-scorers`."""
    chosen = draw.shape.sample(names, draw.shape.randint(1, 4))
    return ",".join(f"{name}:{draw.value.choice((1, 2, 3, 0.5, 1.7))}" for name in chosen)


def _requests(draw: Draw, path: Path, adapters: tuple[str, ...]) -> list[str]:
    kind = draw.shape.random()
    if kind < 0.78:
        folder = path.with_suffix(".servegen")
        drawn = files.of_data(draw, workload(draw, adapters), files.OF_AUGUST, folder)
        path.write_text(yaml.safe_dump(drawn, sort_keys=False))
        return ["--workload-spec", str(path)]
    number = ["--num-requests", draw.value.choice(("1", "30", "60"))]
    if kind < 0.84:
        name = draw.value.choice(("chatbot", "contentgen", "summarization", "multidoc"))
        return ["--workload", name, "--rate", draw.value.choice(("2", "10", "30")), *number]
    lengths = simple_lengths(draw)
    if kind < 0.92:
        think = ["--think-time-ms", draw.value.choice(("10", "500"))] if draw.has(0.5) else []
        return ["--concurrency", draw.value.choice(("1", "4", "20")), *number, *think, *lengths]
    return ["--rate", draw.value.choice(RATES), *number, *lengths]


def simple_lengths(draw: Draw) -> list[str]:
    """Return the options of a simple workload's lengths."""
    usual = ("--prompt-tokens", "200", "--output-tokens", "60")
    return [*usual, *draw.options(OF_SIMPLE, OF_PROGRAM)]
