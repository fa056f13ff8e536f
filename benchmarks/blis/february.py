"""Random command lines of BLIS's revision of February 2026: every option of its `run`, `--max-model-len` included,
which changes nothing there."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import yaml

from benchmarks.blis import files
from benchmarks.blis.lines import (
    ANYWHERE,
    LINES,
    METRICS,
    OF_PROGRAM,
    OUT,
    RATES,
    Line,
    Table,
    scorers,
    simple_lengths,
)
from benchmarks.blis.workloads import LLAMA, Draw, workload

OF_BOTH = (
    *("total-kv-blocks", "block-size-in-tokens", "long-prefill-token-threshold", "scheduler"),
    "max-model-len",
    *("token-bucket-capacity", "token-bucket-refill-rate", "routing-latency", "admission-latency"),
    *("snapshot-refresh-interval", "horizon", "counterfactual-k"),
)  # fmt: skip
OF_RUN: Table = {
    **{name: ANYWHERE[name] for name in OF_BOTH},
    "total-kv-blocks": (0.4, ((70, 120, 200), (250, 300, 350), (500, 800), (1500, 3000))),
    "fitness-weights": (0.08, ("throughput:0.5,p99_ttft:0.3", "mean_e2e:1", "tokens_per_sec:1,p50_ttft:0.2")),
    "max-num-scheduled-tokens": (0.3, (17, 256, 512, 1024, 8192)),
    "max-num-running-reqs": (0.3, (1, 3, 16, 64)),
    "admission-policy": (0.35, ("token-bucket", "slo-gated", "slo-gated", "reject-all")),
    "slo-gated-threshold": (0.3, (0, 2.5, 20)),
    "priority-policy": (0.7, ("constant", "slo-based", "inverted-slo", "slo-tiered", "slo-tiered", "load-adaptive")),
    "slo-base-critical": (0.2, (0, 3.5, 40)),
    "slo-base-standard": (0.2, (0, 9, 12.5)),
    "slo-base-sheddable": (0.2, (-2, 1.5, 20)),
    "slo-age-weight": (0.3, (0, 1e-6, 3e-4)),
    "slo-threshold-standard": (0.2, (0, 5000, 2000000)),
    "slo-threshold-sheddable": (0.2, (0, 9000, 700000)),
    "slo-scorer-bias-critical": (0.2, (0, 0.4, 1)),
    "slo-scorer-bias-sheddable": (0.2, (0, 0.7, 1)),
    "slo-priority-bridge": (0.2, ("",)),
    "load-adaptive-low": (0.2, (0, 5)),
    "load-adaptive-high": (0.2, (1, 4, 60)),
    "slo-prefill": (0.3, ("",)),
    "slo-prefill-critical": (0.2, (0, 33, 256)),
    "slo-prefill-sheddable": (0.2, (0, 20, 512)),
    "slo-preemption": (0.4, ("",)),
    "kv-cpu-blocks": (0.3, (5, 50, 300, 2000)),
    "kv-offload-threshold": (0.3, (0, 0.2, 0.5, 1)),
    "kv-transfer-bandwidth": (0.2, (0.01, 1, 50)),
    "kv-transfer-base-latency": (0.2, (10, 5000)),
}  # fmt: skip
OF_THE_PROGRAM = OF_PROGRAM | {"priority-policy", "max-num-running-reqs"}
SCORERS = ("prefix-affinity", "queue-depth", "kv-utilization", "load-balance", "slo-priority")
FITTED = (
    *("qwen/qwen2.5-7b-instruct", "ibm-granite/granite-3.1-8b-instruct", "meta-llama/llama-3.3-70b-instruct"),
    *("microsoft/phi-4", "codellama/codellama-34b-instruct-hf", "nvidia/llama-3.1-nemotron-70b-instruct-hf"),
)  # fmt: skip
KEYS = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "torch_dtype", "max_position_embeddings"),
)  # fmt: skip
SIZES = (
    (32, 4096, 32, 8, 14336, 128256, "bfloat16", 131072),
    (40, 5120, 40, 10, 17920, 100352, "float32", 16384),
    (28, 3584, 28, 4, 18944, 152064, "fp8", 32768),
    (17, 1000, 7, 7, 3001, 5000, "float16", 8192),
)
# what a client's part of a workload file may hold; the rest came later
OF_CLIENT = {
    "": ("id", "tenant_id", "slo_class", "model", "rate_fraction", "prefix_group", "prefix_length", "streaming",
         "network", "arrival", "input_distribution", "output_distribution", "lifecycle", "multimodal", "reasoning"),
    "arrival": ("process", "cv"),
    "windows": ("start_us", "end_us"),
    "multi_turn": ("max_rounds", "think_time_us", "context_growth"),
}  # fmt: skip


def line(number: int, folder: Path) -> Line:
    """Draw one command line, and write the files that it names into the folder."""
    draw = Draw(number, LINES)
    count = draw.shape.choice((1, 1, 2, 3, 4, 8))
    words = ["--num-instances", str(count), *_model(draw, folder / f"{number}.model")]
    words += draw.options(OF_RUN, OF_THE_PROGRAM)
    words += ["--seed", str(draw.value.randint(1, 10000))] if draw.has(0.9) else []
    if count > 1 and draw.has(0.85):
        policies = ("weighted",) * 4 + ("least-loaded", "prefix-affinity", "always-busiest")
        policy = draw.shape.choice(policies)
        words += ["--routing-policy", policy]
        is_listed = policy == "weighted" and draw.has(0.7)
        words += ["--routing-scorers", scorers(draw, SCORERS)] if is_listed else []
    if draw.has(0.15):
        _policies(draw, folder / f"{number}.policies.yaml")
        words += ["--policy-config", str(folder / f"{number}.policies.yaml")]
    words += ["--results-path", f"{OUT}{METRICS}"] if draw.has(0.4) else []
    words += ["--trace-level", "decisions", "--summarize-trace"] if draw.has(0.2) else []
    return Line(("run",), [*words, *_requests(draw, folder / str(number))], [])


def _model(draw: Draw, folder: Path) -> list[str]:
    name = draw.shape.choice((*(LLAMA,) * 5, *FITTED))
    words = ["--model", name]
    if draw.has(0.12):
        folder.mkdir(exist_ok=True)
        sizes = draw.value.choice(SIZES)
        (folder / "config.json").write_text(json.dumps(dict(zip(KEYS, sizes, strict=True))))
        words += ["--roofline", "--hardware", draw.value.choice(("H100", "A100-SXM"))]
        words += ["--tp", draw.value.choice("124"), "--model-config-folder", str(folder)]
        alpha = ",".join(str(round(draw.value.uniform(0, top), 3)) for top in (20000, 30, 3000))
        return words + (["--alpha-coeffs", alpha] if draw.has(0.4) else [])
    words += ["--tp", draw.value.choice("124")] if name == LLAMA and draw.has(0.4) else []
    if draw.has(0.15):
        tops = ((20000, 30, 3000), (9000, 40, 30))
        for option, law in zip(("--alpha-coeffs", "--beta-coeffs"), tops, strict=True):
            numbers = (round(draw.value.uniform(0, top), 3) for top in law)
            words += [option, ",".join(map(str, numbers))]
    return words


def _requests(draw: Draw, path: Path) -> list[str]:
    kind = draw.shape.random()
    if kind < 0.78:
        file = path.with_suffix(".yaml")
        while "inference_perf" in (drawn := workload(draw, ())):
            pass  # which this revision's `run` always refuses
        older = files.of_data(draw, _older(drawn), files.OF_FEBRUARY, path.with_suffix(".servegen"))
        file.write_text(yaml.safe_dump(older, sort_keys=False))
        return ["--workload-spec", str(file)]
    if kind < 0.86:
        _csv(draw.value, path.with_suffix(".csv"))
        return ["--workload", "traces", "--workload-traces-filepath", str(path.with_suffix(".csv"))]
    number = ["--num-requests", draw.value.choice(("1", "30", "60"))]
    if kind < 0.91:
        name = draw.value.choice(("chatbot", "contentgen", "summarization", "multidoc"))
        return ["--workload", name, "--rate", draw.value.choice(("2", "10", "30")), *number]
    return ["--rate", draw.value.choice(RATES), *number, *simple_lengths(draw)]


def _older(drawn: dict[str, Any]) -> dict[str, Any]:
    """Return a workload file without the features that the revision of February lacks."""
    clients = [_of_client(client) for client in drawn.get("clients", ())]
    for client in clients:
        client.setdefault("rate_fraction", 0.5)
        client.setdefault("arrival", {"process": "poisson"})
    newer = ("cohorts", "goodput_slo_targets")
    older = {name: part for name, part in drawn.items() if name not in newer}
    rate = {"aggregate_rate": older.get("aggregate_rate") or 25.0}
    return older | {"clients": clients} | (rate if clients else {})


def _of_client(part: Any, name: str = "") -> Any:
    if isinstance(part, list):
        return [_of_client(one, name) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "lognormal":
        return {"type": "exponential", "params": {"mean": math.exp(part["params"]["mu"])}}
    known = OF_CLIENT.get(name, part)
    return {key: _of_client(value, key) for key, value in part.items() if key in known}


def _csv(value: random.Random, path: Path) -> None:
    """Write a CSV trace of requests with their tokens; some prompts begin alike."""
    shared = [value.randrange(900) for _ in range(200)]
    gaps = itertools.accumulate(value.choice((0.0, 0.001, 0.07, 1.5)) for _ in range(40))
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens,prefill_tokens,decode_tokens"]
    for arrived in gaps:
        own = [value.randrange(900) for _ in range(value.randint(1, 300))]
        prompt = shared[: value.choice((0, 0, 16, 50, 200))] + own
        output = own[: value.choice((0, 1, 1, 20, 90))]
        lengths = f"{len(prompt)},{len(output)}"
        rows.append(f'{round(arrived, 4)},{lengths},"{prompt}","{output}"')
    path.write_text("\n".join(rows) + "\n")


def _policies(draw: Draw, path: Path) -> None:
    chosen = dict[str, Any]()
    if draw.has(0.5):
        admission = {"policy": draw.shape.choice(("token-bucket", "slo-gated", "always-admit"))}
        numbers = {"token_bucket_capacity": 4000.0, "token_bucket_refill_rate": 900.5}
        chosen["admission"] = admission | (numbers if draw.has(0.5) else {})
    if draw.has(0.5):
        listed = [{"name": "queue-depth", "weight": 1.5}, {"name": "slo-priority", "weight": 2}]
        chosen["routing"] = {"policy": "weighted", "scorers": listed}
    if draw.has(0.5):
        chosen["priority"] = {"policy": draw.shape.choice(("slo-tiered", "slo-based"))}
    chosen |= {"scheduler": "priority-fcfs"} if draw.has(0.6) or not chosen else {}
    path.write_text(yaml.safe_dump(chosen))
