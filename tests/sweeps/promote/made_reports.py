"""Made-up benchmark reports and hypotheses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from sweeps.promote.evidence.hypotheses import MetricPath, TransferHypothesis
from sweeps.promote.evidence.runs import FOLDER, scenes_of

TTFT = "results.request_performance.aggregate.latency.time_to_first_token"
CRITICAL = "summary.traffic_classes.critical.ttft_ms"


def metric_of(path: str, statistic: str, unit: str, better: str) -> MetricPath:
    """A figure of a report."""
    return MetricPath.model_validate(
        {"path": path, "statistic": statistic, "unit": unit, "better": better}
    )


def hypothesis(**changes: Any) -> TransferHypothesis:
    """Track A: the treatment's mean TTFT is lower."""
    direction, tolerance = changes.pop("direction", "lower"), changes.pop("tolerance", 5.0)
    values: dict[str, Any] = {
        "id": "A-1", "track": "A", "statement": "The treatment is faster.", "mechanism": "its order",
        "family": "Cross-policy comparative", "vvuq": "Validation", "type": "Dominance",
        "metric": metric_of(TTFT, "p99", "ms", "lower"),
        "expected": {"direction": direction, "magnitude_sim": "not measured", "tolerance": tolerance},
        "scene": "mixed", "profile": {"harness": "inference-perf"}, "preconditions": (),
        "workload": {"name": "mixed", "rate": 1.0, "requests": 1, "prompt": {}, "output": {}},
        "operating_point": {"saturation_rate": 1.0, "share": 1.0, "measured_by": "simulation"},
        "diagnostic": "The order of requests does not matter.", "origin": "a test",
    }  # fmt: skip
    return TransferHypothesis.model_validate(values | changes)


def equivalence(**changes: Any) -> TransferHypothesis:
    """Track C: nothing changes by more than 5 %."""
    return hypothesis(**{"id": "C-1", "track": "C", "direction": "same"} | changes)


def report(
    uid: str,
    ttft_s: float,
    *,
    stack: str = "a",
    failures: int = 0,
    rate: float = 20.0,
    total: int = 1000,
    input_length: float = 500.0,
    units: str = "s",
    keywords: Sequence[str] = (),
) -> dict[str, Any]:
    """Version 0.2.1."""
    aggregate = {
        "requests": {
            "total": total,
            "failures": failures,
            "input_length": {"units": "count", "mean": input_length},
            "output_length": {"units": "count", "mean": 128.0},
        },
        "latency": {
            "time_to_first_token": {
                "units": units,
                "mean": ttft_s / 2,
                "p50": ttft_s / 2,
                "p99": ttft_s,
            }
        },
        "throughput": {"request_rate": {"units": "queries/s", "mean": rate}},
    }
    load = {
        "metadata": {},
        "native": {},
        "standardized": {
            "tool": "made", "tool_version": "1", "source": "random", "rate_qps": rate,
            "input_seq_len": {"distribution": "fixed", "value": input_length},
        },
    }  # fmt: skip
    component = {
        "metadata": {"label": "router", "cfg_id": stack},
        "standardized": {"kind": "generic", "tool": "made", "tool_version": "1"},
        "native": {},
    }
    return {
        "version": "0.2.1",
        "run": {"uid": uid, "keywords": list(keywords)},
        "scenario": {"stack": [component], "load": load},
        "results": {"request_performance": {"aggregate": aggregate}},
    }


def by_class(uid: str, rows: Sequence[Mapping[str, Any]], ttft_p99_ms: float) -> dict[str, Any]:
    """Results of the priority-mix harness with one class."""
    errors = sum(row["status_code"] != 200 for row in rows)
    latencies = {"avg": 5.0, "p50": 5.0, "p95": 5.0, "p99": 5.0}
    critical = {
        "requests": len(rows),
        "successes": len(rows) - errors,
        "errors": errors,
        "ttft_ms": {
            "avg": ttft_p99_ms / 2,
            "p50": ttft_p99_ms / 2,
            "p95": ttft_p99_ms,
            "p99": ttft_p99_ms,
        },
        "tpot_ms": {"avg": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0},
        "latency_ms": latencies,
    }
    summary = {
        "total_requests": len(rows),
        "errors": errors,
        "offered": {"requests": len(rows), "seconds": len(rows) / 1000.0},
        "traffic_classes": {"critical": critical},
    }
    return {"run": {"uid": uid}, "summary": summary, "requests": list(rows)}


def row(
    status: int = 200, ttft_ms: float | None = 50.0, latency_ms: float = 800.0
) -> dict[str, Any]:
    """One request."""
    return {
        "traffic_class": "critical", "status_code": status, "latency_ms": latency_ms,
        "ttft_ms": ttft_ms if status == 200 else None, "tpot_ms": 5.0, "output_tokens": 128, "error": None,
    }  # fmt: skip


def files_of(
    arms: Mapping[str, Sequence[Mapping[str, Any]]], scene: str = "mixed", name: str = "report.yaml"
) -> dict[str, str]:
    """Documents of each arm's runs, as files."""
    return {
        f"{FOLDER}/{scene}/{arm}/run-{place}/{name}": json.dumps(one) + "\n"
        if name.endswith(".json")
        else yaml.safe_dump(dict(one))
        for arm, documents in arms.items()
        for place, one in enumerate(documents)
    }


def three_arms(
    baseline: Sequence[float],
    treatment: Sequence[float],
    control: Sequence[float] | None = None,
    **of_treatment: Any,
) -> dict[str, str]:
    """Reports of TTFT P99, s, by run of each arm; what else is given is the treatment's."""
    arms = {"baseline": baseline, "control": control or baseline, "treatment": treatment}
    return files_of(
        {
            arm: [
                report(
                    f"{arm}-{place}",
                    value,
                    stack=arm,
                    **(of_treatment if arm == "treatment" else {}),
                )
                for place, value in enumerate(values)
            ]
            for arm, values in arms.items()
        }
    )


def scenes(files: Mapping[str, str]) -> dict[str, Any]:
    """As the evaluator reads them."""
    return dict(scenes_of(files))
