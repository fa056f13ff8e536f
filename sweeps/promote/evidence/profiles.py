"""Make stage 4: benchmark profiles, and the experiments that run each profile on every arm."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from blis_jax.files.strict_yaml import read_mapping
from sweeps.promote.evidence.hypotheses import (
    OfferedTraffic,
    TransferHypothesis,
    inventory,
    parse_hypotheses,
)
from sweeps.promote.evidence.runs import FEWEST_RUNS
from sweeps.promote.llmd import deployment
from sweeps.promote.llmd.deployment import FILE
from sweeps.promote.llmd.documents import CONFIG, OVERLAY, PICKERS
from sweeps.promote.llmd.roles import PodRoles, with_roles
from sweeps.promote.promotion import (
    ARMS,
    BASELINE,
    ENGINE_PRIORITY,
    Files,
    Promotion,
)
from sweeps.promote.store import render, yaml_text

FOLDER, EXPERIMENTS = "profiles", "experiments"
README = f"{FOLDER}/README.md"
HARNESS_PATCH = f"{FOLDER}/priority-mix/harness.patch"
MODEL = "REPLACE_ENV_LLMDBENCH_DEPLOY_CURRENT_MODEL"
TOKENIZER = "REPLACE_ENV_LLMDBENCH_DEPLOY_CURRENT_TOKENIZER"
ENDPOINT = "REPLACE_ENV_LLMDBENCH_HARNESS_STACK_ENDPOINT_URL"
LEAST_SECONDS = 60  # of a steady load; a burst is as long as its requests need
TIMEOUT_S = 300
TTFT_HEADER = "x-llm-d-slo-ttft-ms"
# about as many tokens
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
]
MOST_PER_POD = 400  # requests/s that one process of priority-mix can send
MOST_THREADS = 4096  # of one process


def profile_files(hypotheses: str, files: Files) -> Files:
    """Return the profiles `profiles/HARNESS/SCENE.yaml.in`, the experiments that run them on every arm, and a page.

    Scenes with the same load share the profile of the first one; their experiments differ in the setup.

    Args:
        hypotheses: the text of `hypotheses.yaml`.
        files: the files of earlier stages; experiments set up the arms from their overlays.

    Raises:
        ConfigError: the text does not have the form of `hypotheses.yaml`.
    """
    document = parse_hypotheses(hypotheses)
    made: dict[str, str] = {}
    profiles = []
    for hypothesis in document.hypotheses:
        harness, path = hypothesis.profile.harness, ""
        if hypothesis.track == "C":
            path = _of_scenario(hypothesis, files, made)
        elif harness is not None:
            text, experiment = (
                yaml_text(_FORMS[harness](hypothesis)),
                f"{EXPERIMENTS}/{hypothesis.scene}-{harness}.yaml",
            )
            same = (other for other in made if made[other] == text)  # its stress is in the setup
            path = next(same, f"{FOLDER}/{harness}/{hypothesis.scene}.yaml.in")
            made[path] = text
            if experiment not in made:
                profile = harness, path.rpartition("/")[2].removesuffix(".in")
                made[experiment] = yaml_text(_experiment(hypothesis, profile, files))
        profiles.append((hypothesis, path))
    if any(path.startswith(f"{FOLDER}/priority-mix/") for path in made):
        made[HARNESS_PATCH] = render("harness.patch.j2")
    made[README] = render(
        "profiles.md.j2", strategy=document.strategy, profiles=profiles, most=MOST_PER_POD
    )
    return made


# --- experiments ------------------------------------------------------------------------------------


def _experiment(
    hypothesis: TransferHypothesis, profile: tuple[str, str], files: Files
) -> dict[str, Any]:
    """Return the experiment of a scene: it runs every arm under the scene's stress with one profile and its harness."""
    overlays = overlays_of(files)
    arms = [name for name in overlays if hypothesis.track == "A" or name in ARMS]
    constants = deployment.dotted(overlays.get(BASELINE, {})) | hypothesis.setup
    if profile[0] == "priority-mix":
        constants["harness.loadParallelism"] = pods_of(hypothesis)
    keys: dict[str, dict[str, Any]] = {}
    for arm in arms:
        changes = {} if arm == BASELINE else deployment.dotted(overlays[arm])
        keys[arm] = changes | hypothesis.setup
        if hypothesis.picker:
            keys[arm][PICKERS] = {FILE: _stressed_picker(files, arm)}
    about = f"{hypothesis.id}: arms {', '.join(arms)} on the scenario {deployment.SCENARIO}."
    return deployment.experiment_of(hypothesis.scene, about, profile, constants, keys)


_PICKER = "router.epp"
_OF_ROUTER = (f"{_PICKER}.", "router.inferenceObjectives")


def _of_scenario(hypothesis: TransferHypothesis, files: Files, made: dict[str, str]) -> str:
    """Add to `made` the experiment of a baseline scenario, whose arms differ only in the router; return its path."""
    ends = {f" {inventory().folder}/{each.name}.yaml": each for each in inventory().scenarios}
    scenario = next((each for end, each in ends.items() if hypothesis.origin.endswith(end)), None)
    if scenario is None or scenario.left_out:
        return ""
    path = f"{EXPERIMENTS}/{scenario.experiment}.yaml"
    if path not in made:
        base: dict[str, Any] = {}
        overlays, arms = overlays_of(files), {}
        for arm in (each for each in ARMS if each in overlays):
            changes = deployment.dotted(overlays[arm])
            base = changes if arm == BASELINE else base
            arms[arm] = {
                key: value
                for key, value in (base | changes).items()
                if key.startswith(_OF_ROUTER) and key != f"{_PICKER}.replicas"
            }
            document = with_roles(_picker_of(files, arm), PodRoles(scenario.roles))
            arms[arm][PICKERS] = {FILE: yaml_text(document)}
        about = "Give the scenario as --spec; its own model and engines stay, and arms differ in the router."
        profile = (scenario.harness, f"{scenario.profile}.yaml")
        experiment = deployment.experiment_of(scenario.experiment, about, profile, {}, arms)
        made[path] = yaml_text(experiment)
    return path


def overlays_of(files: Files) -> dict[str, Any]:
    """Return the overlays by arm, the baseline's first."""
    ends = f"/{OVERLAY}"
    paths = {path.split("/")[-2]: path for path in files if path.endswith(ends)}
    arms = sorted(paths, key=lambda arm: (arm not in ARMS, ARMS.index(arm) if arm in ARMS else arm))
    return {arm: read_mapping(files[paths[arm]], paths[arm]) for arm in arms}


def _picker_of(files: Files, arm: str) -> dict[str, Any]:
    """Return the configuration of an arm's picker."""
    path = next(file for file in files if file.endswith(f"arms/{arm}/{CONFIG}"))
    return dict(read_mapping(files[path], path))


def _stressed_picker(files: Files, arm: str) -> str:
    """Return an arm's picker without the plugin that writes the engine's priority."""
    document = _picker_of(files, arm)
    document["plugins"] = [
        plugin for plugin in document["plugins"] if plugin["type"] != ENGINE_PRIORITY
    ]
    return yaml_text(document)


def _rate(hypothesis: TransferHypothesis) -> float:
    return hypothesis.workload.rate * hypothesis.knobs.get("rate_factor", 1)


def _timeout(hypothesis: TransferHypothesis) -> float:
    return hypothesis.knobs.get("timeout_s", TIMEOUT_S)


def _prefix_tokens(hypothesis: TransferHypothesis) -> int:
    return round(hypothesis.knobs.get("prefix_tokens", hypothesis.workload.prefix_tokens))


def _seconds(hypothesis: TransferHypothesis) -> int:
    """Return how long the load lasts, in s: a burst (share above 1) as simulated, other loads long enough to settle."""
    seconds = math.ceil(hypothesis.workload.requests / _rate(hypothesis))
    return max(1, seconds) if hypothesis.operating_point.share > 1 else max(LEAST_SECONDS, seconds)


def requests_of(hypothesis: TransferHypothesis) -> int:
    """Return how many requests are sent: for a burst as many as simulated, else rate × duration."""
    if hypothesis.operating_point.share > 1:
        return hypothesis.workload.requests
    return round(_rate(hypothesis) * _seconds(hypothesis))


def _whole(lengths: Mapping[str, float], key: str, least: int = 1) -> int:
    return max(least, round(lengths[key]))


# --- inference-perf ---------------------------------------------------------------------------------


def _inference_perf(hypothesis: TransferHypothesis) -> dict[str, Any]:
    traffic = hypothesis.workload
    return {
        "load": {
            "type": "poisson",
            "stages": [{"rate": _rate(hypothesis), "duration": _seconds(hypothesis)}],
            "request_timeout": _timeout(hypothesis),
            "num_workers": 8,
            "worker_max_concurrency": 1000,
        },
        "api": {"type": "completion", "streaming": True},
        "server": {
            "type": "vllm",
            "model_name": MODEL,
            "base_url": ENDPOINT,
            "ignore_eos": bool(hypothesis.knobs.get("ignore_eos", 1)),
        },
        "tokenizer": {"pretrained_model_name_or_path": TOKENIZER},
        "data": _prefix_data(hypothesis) if _prefix_tokens(hypothesis) else _random_data(traffic),
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": True}},
        "storage": {"local_storage": {"path": "/workspace"}},
    }


def _prefix_data(hypothesis: TransferHypothesis) -> dict[str, Any]:
    """Return the data of shared prefixes; the harness takes one length of questions and one of answers, the means."""
    traffic = hypothesis.workload
    groups = traffic.prefix_groups
    return {
        "type": "shared_prefix",
        "shared_prefix": {
            "num_groups": groups,
            "num_prompts_per_group": max(1, math.ceil(requests_of(hypothesis) / groups)),
            "system_prompt_len": _prefix_tokens(hypothesis),
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


def _guidellm(hypothesis: TransferHypothesis) -> dict[str, Any]:
    traffic = hypothesis.workload
    data: dict[str, Any] = {"kind": "synthetic_text"}
    for name, lengths in (("prompt", traffic.prompt), ("output", traffic.output)):
        data[f"{name}_tokens"] = _whole(lengths, "mean")
        data[f"{name}_tokens_stdev"] = _whole(lengths, "std_dev", 0)
        data[f"{name}_tokens_min"] = _whole(lengths, "min")
        data[f"{name}_tokens_max"] = _whole(lengths, "max")
    data["turns"] = traffic.turns
    if _prefix_tokens(hypothesis):
        bucket = {
            "prefix_tokens": _prefix_tokens(hypothesis),
            "prefix_count": traffic.prefix_groups,
        }
        data["prefix_buckets"] = [bucket]
    return {
        "metadata": {"labels": {"name": traffic.name}},
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": ENDPOINT,
                "model": MODEL,
                "request_format": "/v1/chat/completions",
            },
            "profile": {"kind": "constant", "rate": _rate(hypothesis)},
            "constraints": [{"kind": "max_duration", "seconds": _seconds(hypothesis)}],
            "data": [data],
        },
    }


# --- priority-mix -----------------------------------------------------------------------------------


def pods_of(hypothesis: TransferHypothesis) -> int:
    """Return how many pods of the harness send the load; each pod runs one process."""
    return max(1, math.ceil(_rate(hypothesis) / MOST_PER_POD))


def _priority_mix(hypothesis: TransferHypothesis) -> dict[str, Any]:
    """Return the priority-mix profile, as each of the harness's pods runs it."""
    traffic, pods = hypothesis.workload, pods_of(hypothesis)
    answer, count = _whole(traffic.output, "mean"), math.ceil(requests_of(hypothesis) / pods)
    return {
        "endpoint_url": ENDPOINT,
        "model": MODEL,
        "api": {"type": "chat", "path": "/v1/chat/completions"},
        "load": {
            "duration_seconds": _seconds(hypothesis),
            "rate_per_second": _rate(hypothesis) / pods,
            "total_requests": count,
            "max_in_flight": min(MOST_THREADS, count),
            "request_timeout_seconds": _timeout(hypothesis),
            "fail_on_error": False,
        },
        "request": {"max_tokens": answer, "stream": True},
        "trafficClasses": [_traffic_class(hypothesis, each, answer) for each in traffic.classes],
    }


def _traffic_class(
    hypothesis: TransferHypothesis, slo_class: Mapping[str, Any], answer: int
) -> dict[str, Any]:
    header = slo_class.get("ttft_header_ms")
    shared, unshared = (
        _words(_prefix_tokens(hypothesis)),
        _words(_whole(hypothesis.workload.prompt, "mean")),
    )
    return {
        "name": slo_class["name"],
        "weight": slo_class["share"],
        "priority": slo_class["priority"],
        "objective": slo_class["objective"],
        "fairnessID": f"tenant-{slo_class['name']}",
        **({"headers": {TTFT_HEADER: str(header)}} if header is not None else {}),
        "request": {
            "promptTemplate": f"{shared}{{variation}} {unshared}",
            "promptRepeat": 1,  # the shared head is there once, at the beginning
            "max_tokens": answer,
        },
    }


def _words(count: int) -> str:
    """Return `count` words, each followed by a blank: about one token per word."""
    return "".join(f"{WORDS[place % len(WORDS)]} " for place in range(count))


_FORMS: dict[str, Callable[[TransferHypothesis], dict[str, Any]]] = {
    "inference-perf": _inference_perf,
    "guidellm": _guidellm,
    "priority-mix": _priority_mix,
}


# --- the script that judges -----------------------------------------------------------------------

SCRIPT = "tests/evaluate.sh"
_SCRIPT_TEXT = """\
#!/bin/sh
# Judges every hypothesis of this promotion by benchmark reports of a cluster.
#
#   tests/evaluate.sh REPORTS
#
# REPORTS holds SCENE/ARM/RUN/*.yaml, reports of llm-d-benchmark (v0.1 to v0.2.1) and results.json of priority-mix.
# SCENE is the scene of a hypothesis in hypotheses.yaml, ARM one of {arms}; runs of all arms with
# one name are pairs: the same workload, the same seed. {fewest} runs per arm are the least.
set -eu
if [ "$#" -ne 1 ]; then
    echo "usage: $0 REPORTS" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/.." && pwd)
exec blis-jax promote validate {strategy} --output "$here" --reports "$1"
"""


def script_files(promotion: Promotion) -> Files:
    """Return the script that judges reports, by path."""
    text = _SCRIPT_TEXT.format(
        fewest=FEWEST_RUNS, arms=", ".join(ARMS), strategy=shlex.quote(promotion.given)
    )
    return {SCRIPT: text}
