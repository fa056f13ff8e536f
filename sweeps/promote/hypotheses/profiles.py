"""Stage 4, profiles: one profile of llm-d-benchmark for each hypothesis of tracks A and B, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sweeps.promote.hypotheses.document import (
    OfferedTraffic,
    TransferHypothesis,
    parse_hypotheses,
)
from sweeps.promote.maps.page import table
from sweeps.promote.maps.plain import yaml_text
from sweeps.promote.promotion import Files

FOLDER = "profiles"
README = f"{FOLDER}/README.md"
MODEL = "REPLACE_ENV_LLMDBENCH_DEPLOY_CURRENT_MODEL"
TOKENIZER = "REPLACE_ENV_LLMDBENCH_DEPLOY_CURRENT_TOKENIZER"
ENDPOINT = "REPLACE_ENV_LLMDBENCH_HARNESS_STACK_ENDPOINT_URL"
LEAST_SECONDS = 60  # of a steady load; a burst is as long as its requests need
TIMEOUT_S = 300
TTFT_HEADER = "x-llm-d-slo-ttft-ms"
WORDS = "alpha beta gamma delta epsilon zeta eta theta"  # about as many tokens
TOKENS_OF_WORDS = 8
MOST_IN_FLIGHT = 4096  # threads of the harness


def profile_files(hypotheses: str) -> Files:
    """Profiles by path `profiles/HARNESS/ID.yaml.in`, and a page that says which hypothesis has which.

    Args:
        hypotheses: the text of `hypotheses.yaml`.

    Raises:
        ConfigError: the text is not of the form.
    """
    document = parse_hypotheses(hypotheses)
    files: dict[str, str] = {}
    cells = []
    for one in document.hypotheses:
        harness = one.profile.harness
        if one.track == "C" or harness is None:
            cells.append([one.id, "none", one.profile.reason])
            continue
        path = f"{FOLDER}/{harness}/{one.id.lower()}.yaml.in"
        files[path] = yaml_text(_FORMS[harness](one))
        cells.append([one.id, f"`{path}`", _load_words(one)])
    files[README] = _readme(document.strategy, cells)
    return files


def _readme(strategy: str, cells: list[list[str]]) -> str:
    lines = [
        f"# Benchmark profiles of {strategy}",
        "",
        "Run every profile on each arm, at least three times, with the same requests. Rates hold for a cluster that "
        "saturates where the simulated one does: measure its saturation first, and keep the share.",
        "",
        "priority-mix sends the objective and the deadline header of each class, never the engine's request field "
        "`priority`. Its prompts differ from the first words on, so it shares no prefix of the simulated length; its "
        "arrivals are evenly spaced. inference-perf and guidellm measure all classes together.",
        "",
        *table(["hypothesis", "profile", "load, or why there is none"], cells),
    ]
    return "\n".join(lines) + "\n"


def _load_words(one: TransferHypothesis) -> str:
    return f"{one.workload.rate:g} requests/s, {one.operating_point.share:g} of saturation"


def _seconds(one: TransferHypothesis) -> int:
    """As long as the simulated load lasts where it is a burst, else long enough to be steady."""
    seconds = math.ceil(one.workload.requests / one.workload.rate)
    return max(1, seconds) if one.operating_point.share > 1 else max(LEAST_SECONDS, seconds)


def _whole(lengths: Mapping[str, float], key: str, least: int = 1) -> int:
    return max(least, round(lengths[key]))


# --- inference-perf ---------------------------------------------------------------------------------


def _inference_perf(one: TransferHypothesis) -> dict[str, Any]:
    traffic = one.workload
    return {
        "load": {
            "type": "poisson",
            "stages": [{"rate": traffic.rate, "duration": _seconds(one)}],
            "request_timeout": TIMEOUT_S,
            "num_workers": 8,
            "worker_max_concurrency": 1000,
        },
        "api": {"type": "completion", "streaming": True},
        "server": {
            "type": "vllm",
            "model_name": MODEL,
            "base_url": ENDPOINT,
            "ignore_eos": one.id != "B-real-output-lengths",
        },
        "tokenizer": {"pretrained_model_name_or_path": TOKENIZER},
        "data": _prefix_data(traffic) if traffic.prefix_tokens else _random_data(traffic),
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": True}},
        "storage": {"local_storage": {"path": "/workspace"}},
    }


def _prefix_data(traffic: OfferedTraffic) -> dict[str, Any]:
    """Shared prefixes; the harness knows one length of questions and of answers, the mean."""
    groups = traffic.prefix_groups
    return {
        "type": "shared_prefix",
        "shared_prefix": {
            "num_groups": groups,
            "num_prompts_per_group": max(1, math.ceil(traffic.requests / groups)),
            "system_prompt_len": traffic.prefix_tokens,
            "question_len": _whole(traffic.prompt, "mean"),
            "output_len": _whole(traffic.output, "mean"),
            "enable_multi_turn_chat": False,
        },
    }


def _random_data(traffic: OfferedTraffic) -> dict[str, Any]:
    return {
        "type": "random",
        "input_distribution": _distribution(traffic.prompt, traffic.requests),
        "output_distribution": _distribution(traffic.output, traffic.requests),
    }


def _distribution(lengths: Mapping[str, float], count: int) -> dict[str, Any]:
    return {
        "min": _whole(lengths, "min"),
        "max": _whole(lengths, "max"),
        "mean": lengths["mean"],
        "std_dev": lengths["std_dev"],
        "total_count": count,
    }


# --- guidellm ---------------------------------------------------------------------------------------


def _guidellm(one: TransferHypothesis) -> dict[str, Any]:
    traffic = one.workload
    data: dict[str, Any] = {"kind": "synthetic_text"}
    for name, lengths in (("prompt", traffic.prompt), ("output", traffic.output)):
        data[f"{name}_tokens"] = _whole(lengths, "mean")
        data[f"{name}_tokens_stdev"] = _whole(lengths, "std_dev", 0)
        data[f"{name}_tokens_min"] = _whole(lengths, "min")
        data[f"{name}_tokens_max"] = _whole(lengths, "max")
    data["turns"] = traffic.turns
    if traffic.prefix_tokens:
        bucket = {"prefix_tokens": traffic.prefix_tokens, "prefix_count": traffic.prefix_groups}
        data["prefix_buckets"] = [bucket]
    return {
        "metadata": {"labels": {"name": one.id.lower()}},
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": ENDPOINT,
                "model": MODEL,
                "request_format": "/v1/chat/completions",
            },
            "profile": {"kind": "constant", "rate": traffic.rate},
            "constraints": [{"kind": "max_duration", "seconds": _seconds(one)}],
            "data": [data],
        },
    }


# --- priority-mix -----------------------------------------------------------------------------------


def _priority_mix(one: TransferHypothesis) -> dict[str, Any]:
    traffic = one.workload
    answer = _whole(traffic.output, "mean")
    tokens = traffic.prefix_tokens + _whole(traffic.prompt, "mean")
    return {
        "endpoint_url": ENDPOINT,
        "model": MODEL,
        "api": {"type": "chat", "path": "/v1/chat/completions"},
        "load": {
            "duration_seconds": _seconds(one),
            "rate_per_second": traffic.rate,
            "max_in_flight": min(MOST_IN_FLIGHT, max(1, math.ceil(traffic.rate * _seconds(one)))),
            "request_timeout_seconds": TIMEOUT_S,
            "fail_on_error": False,
        },
        "request": {"max_tokens": answer, "stream": True},
        "trafficClasses": [_traffic_class(given, tokens, answer) for given in traffic.classes],
    }


def _traffic_class(given: Mapping[str, Any], tokens: int, answer: int) -> dict[str, Any]:
    header = given.get("ttft_header_ms")
    return {
        "name": given["name"],
        "weight": given["share"],
        "priority": given["priority"],
        "objective": given["objective"],
        "fairnessID": f"tenant-{given['name']}",
        **({"headers": {TTFT_HEADER: str(header)}} if header is not None else {}),
        "request": {
            "promptTemplate": f"{{variation}} {WORDS} ",
            "promptRepeat": max(1, math.ceil(tokens / (TOKENS_OF_WORDS + 2))),
            "max_tokens": answer,
        },
    }


_FORMS: dict[str, Callable[[TransferHypothesis], dict[str, Any]]] = {
    "inference-perf": _inference_perf,
    "guidellm": _guidellm,
    "priority-mix": _priority_mix,
}
