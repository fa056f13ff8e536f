"""Make stages 3 and 4: hypotheses as data and as a page, benchmark profiles, the evaluation script.

The rules of gate 2 look for what the hypotheses do not cover.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping, read_yaml
from sweeps.promote.hypotheses.confirmed import confirmed_claims
from sweeps.promote.hypotheses.document import (
    HYPOTHESES,
    PAGE,
    HypothesisDocument,
    OfferedTraffic,
    TransferHypothesis,
    inventory,
    parse_hypotheses,
)
from sweeps.promote.hypotheses.tracks import TrackMaker, track_a, track_b, track_c
from sweeps.promote.maps.rows import DICTIONARY, GapRow, SignalRow, parsed_rows
from sweeps.promote.promotion import ARMS, Files, Finding, Promotion
from sweeps.promote.texts import render, yaml_text

_TRACKS = {
    "A": "Track A: what was confirmed must hold",
    "B": "Track B: what the simulator has no model of",
    "C": "Track C: what must not change",
}


def hypothesis_files(promotion: Promotion, maps: Files, ledger: Path | None = None) -> Files:
    """Return `hypotheses.yaml` and `hypotheses.md`.

    Args:
        promotion: what is promoted where.
        maps: the files of earlier stages. The dictionary decides which gaps are tested; objectives and deadline
            headers of the classes are taken from the configurations, if these are there.
        ledger: folder of the ledger whose confirmed rows make track A; the present folder if not given.

    Raises:
        ConfigError: there is no dictionary, or a row of it is not allowed.
    """
    document = document_of(promotion, maps, ledger or Path())
    plain = document.model_dump(mode="json", exclude_none=True)
    page = render("hypotheses.md.j2", document=document, tracks=_TRACKS)
    return {HYPOTHESES: yaml_text(plain), PAGE: page}


def document_of(promotion: Promotion, maps: Files, ledger: Path) -> HypothesisDocument:
    """Return the hypotheses as checked data."""
    dictionary = _dictionary(maps)
    gaps = parsed_rows(GapRow, _without(dictionary["map_c"], "used"), f"{DICTIONARY}: map_c")
    read = [row for row in dictionary["map_b"] if row.get("used")]
    signals = parsed_rows(SignalRow, _without(read, "used"), f"{DICTIONARY}: map_b")
    claims, left = confirmed_claims(promotion, ledger)
    maker = TrackMaker(promotion, maps)
    pinned = inventory()
    return HypothesisDocument(
        strategy=promotion.given,
        baseline=promotion.baseline.name,
        target=promotion.target,
        inventory=f"{pinned.repository}@{pinned.commit}",
        hypotheses=(*track_a(maker, claims), *track_b(maker, gaps, signals), *track_c(maker)),
        not_transferred=tuple(left),
    )


def _dictionary(maps: Files) -> dict[str, Any]:
    path = next((path for path in sorted(maps) if path.rpartition("/")[2] == DICTIONARY), None)
    if path is None:
        raise ConfigError(f"there is no {DICTIONARY}; run the stage maps")
    found = dict(read_mapping(maps[path], path))
    for key in ("map_b", "map_c"):
        rows = found.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{path}: {key} is no list of rows; run the stage maps again")
    return found


def _without(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != key} for row in rows]


def coverage_findings(files: Files) -> Iterator[Finding]:
    """Yield what is wrong with, or missing in, `hypotheses.yaml`; nothing where there is no such file."""
    path = next((one for one in sorted(files) if one.rpartition("/")[2] == HYPOTHESES), None)
    if path is None:
        return
    try:
        document = parse_hypotheses(files[path], path)
    except ConfigError as error:
        yield Finding("CRITICAL", "hypothesis-not-allowed", path, str(error))
        return
    origins = {one.origin for one in document.hypotheses}
    words = {part for origin in origins for part in origin.split("; ")}
    for wanted in (*_of_dictionary(files), *_of_inventory(document)):
        if wanted not in words:
            message = f"no hypothesis comes from {wanted!r}; add one with this origin"
            yield Finding("CRITICAL", "not-covered", path, message)


def _of_dictionary(files: Files) -> Iterator[str]:
    """Yield origins that the dictionary asks for: rows of Map C, signals that are read and less fresh there."""
    path = next((one for one in sorted(files) if one.rpartition("/")[2] == DICTIONARY), None)
    dictionary = read_yaml(files[path], path) if path else {}
    for row in dictionary.get("map_c", ()):
        yield f"Map C: {row['id']}"
    for row in dictionary.get("map_b", ()):
        if row.get("used") and row.get("gap"):
            yield f"Map B: {row['name']}"


def _of_inventory(document: HypothesisDocument) -> Iterator[str]:
    pinned = inventory()
    if document.inventory != f"{pinned.repository}@{pinned.commit}":
        yield f"inventory {pinned.repository}@{pinned.commit}"
    for scenario in pinned.scenarios:
        yield f"{pinned.repository}@{pinned.commit[:12]} {pinned.folder}/{scenario.name}.yaml"


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
    """Return profiles by path `profiles/HARNESS/ID.yaml.in`, and a page that says which hypothesis has which.

    Args:
        hypotheses: the text of `hypotheses.yaml`.

    Raises:
        ConfigError: the text is not of the form.
    """
    document = parse_hypotheses(hypotheses)
    files: dict[str, str] = {}
    profiles = []
    for hypothesis in document.hypotheses:
        harness, path = hypothesis.profile.harness, ""
        if hypothesis.track != "C" and harness is not None:
            path = f"{FOLDER}/{harness}/{hypothesis.id.lower()}.yaml.in"
            files[path] = yaml_text(_FORMS[harness](hypothesis))
        profiles.append((hypothesis, path))
    files[README] = render("profiles.md.j2", strategy=document.strategy, profiles=profiles)
    return files


def _seconds(one: TransferHypothesis) -> int:
    """Return how long a load lasts, in s: as the simulated one where it is a burst, else long enough to be steady."""
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
    """Return shared prefixes; the harness knows one length of questions and of answers, the mean."""
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
        "trafficClasses": [_traffic_class(one, tokens, answer) for one in traffic.classes],
    }


def _traffic_class(slo_class: Mapping[str, Any], tokens: int, answer: int) -> dict[str, Any]:
    header = slo_class.get("ttft_header_ms")
    return {
        "name": slo_class["name"],
        "weight": slo_class["share"],
        "priority": slo_class["priority"],
        "objective": slo_class["objective"],
        "fairnessID": f"tenant-{slo_class['name']}",
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


SCRIPT = "tests/evaluate.sh"
_TEXT = """\
#!/bin/sh
# Judges every hypothesis of this promotion by benchmark reports of a cluster.
#
#   tests/evaluate.sh REPORTS
#
# REPORTS holds SCENE/ARM/RUN/*.yaml, reports of llm-d-benchmark (v0.1 to v0.2.1) and results.json of priority-mix.
# SCENE is the scene of a hypothesis in hypotheses.yaml, ARM one of {arms}; runs of all arms with
# one name are pairs: the same workload, the same seed. Three runs per arm are the least.
set -eu
if [ "$#" -ne 1 ]; then
    echo "usage: $0 REPORTS" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")/.." && pwd)
exec python -m sweeps.promote validate {strategy} --output "$here" --reports "$1"
"""


def script_files(promotion: Promotion) -> Files:
    """Return the script, by path."""
    text = _TEXT.format(arms=", ".join(ARMS), strategy=shlex.quote(promotion.given))
    return {SCRIPT: text}
