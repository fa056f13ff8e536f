"""Simulate benchmark reports: reports of version 0.2.1, and priority-mix's results by class.

A run is one seed of one arm in one scene. Its reports have the form of a real cluster's reports and the keyword
`evidence: simulated`, so that nothing derived from them can pass for a measurement.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import yaml

from blis_jax import __version__
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import admission_name
from blis_jax.core.outcome import WHOLE
from blis_jax.core.types import CLASS_NAMES
from blis_jax.files.atomic_write import finite
from blis_jax.metrics.figures import ended_us
from blis_jax.metrics.summaries import tpot_us
from blis_jax.records.record import SETTLED, RunRecord, Status
from sweeps.promote.evidence.concerns import SimulatedScene
from sweeps.promote.evidence.reports import DENIED, QUANTILES, SIMULATED_MARK
from sweeps.promote.evidence.runs import FOLDER
from sweeps.promote.maps import policy_row
from sweeps.runs.experiment import Experiment
from sweeps.strategies.arms import key_of

TOOL = "blis_jax"
_US = 1e6
_DIGITS = 9  # of seconds


@dataclass(frozen=True)
class SimulatedRun:
    """Hold the data of one run's reports: one entry for each request, times in µs, NaN where there is no value."""

    outcome: str
    is_whole: bool  # it came to its end; a run that did not has no reports
    classes: Sequence[str]  # of each request
    # 200, 429 or 500 for what was denied, 0 for what was dropped or not finished
    status: Sequence[int]
    input_len: np.ndarray
    output_len: np.ndarray
    ttft_us: np.ndarray
    tpot_us: np.ndarray
    e2e_us: np.ndarray
    decided_us: np.ndarray  # until the answer 429
    seconds: float  # until the last completion
    num_unfinished: int = 0

    def per_second(self, amount: float) -> float:
        """Return an amount per second of the run; 0 where nothing ran."""
        return _rounded(amount / self.seconds) if self.seconds else 0.0

    @property
    def is_served(self) -> np.ndarray:
        """Return a mask of the requests that were answered."""
        return np.array([status == 200 for status in self.status])


def denied_as(config: ClusterConfig) -> int:
    """Return the status that a denied request gets: 429, or 500 if the denial comes from a generated admitter."""
    row = policy_row("admission", admission_name(config))
    return DENIED[row is None or row.status == "code"]


def run_of(record: RunRecord, denied: int = DENIED[0]) -> SimulatedRun:
    """Extract from a run's record the data for its reports; safe to call from threads."""
    requests = record.requests
    is_served = requests.status == Status.COMPLETED
    is_shed = requests.status == Status.REJECTED
    status = np.where(is_served, 200, np.where(is_shed, denied, 0))
    is_left = ~np.isin(requests.status, SETTLED)

    def served(values: np.ndarray) -> np.ndarray:
        return np.where(is_served & (values >= 0), values, np.nan).astype(np.float64)

    return SimulatedRun(
        outcome=record.outcome.name,
        is_whole=record.outcome in WHOLE,
        classes=[CLASS_NAMES[code] or "default" for code in requests.slo_class],
        status=status.tolist(),
        input_len=np.asarray(requests.input_len),
        output_len=np.asarray(requests.output_len),
        ttft_us=served(np.asarray(requests.ttft_us)),
        tpot_us=served(np.where(requests.output_len > 1, tpot_us(record), np.nan)),
        e2e_us=served(np.asarray(requests.e2e_us)),
        decided_us=np.zeros(len(status)),
        seconds=ended_us(record) / _US,
        num_unfinished=int(is_left.sum()),
    )


def simulate(
    scene: SimulatedScene, arms: Mapping[str, ClusterConfig], seeds: Sequence[int], identity: str
) -> dict[str, str]:
    """Return the reports of every arm on every seed, by path; arms with the same configuration share one run.

    A seed on which any arm fails to finish (BLIS crashes or never ends) has no reports.

    Args:
        scene: the workload and the concern.
        arms: configurations by name, without the concern.
        seeds: the seeds of the workload, the same for all arms.
        identity: the identity of the translation, which becomes part of the run ids.
    """
    runs = _runs(scene, arms, seeds)
    files: dict[str, str] = {}
    for place, seed in enumerate(seeds):
        of_seed = {arm: of_arm[place] for arm, of_arm in runs.items()}
        if not all(run.is_whole for run in of_seed.values()):
            continue
        sheds = any(not run.is_served.all() for run in of_seed.values())
        for arm, run in of_seed.items():
            folder = f"{FOLDER}/{scene.name}/{arm}/seed-{seed}"
            labels = _Labels(scene, arm, arms[arm], seed, identity)
            files[f"{folder}/report.yaml"] = _yaml(_report(run, labels))
            files[f"{folder}/results.json"] = _json(_by_class(run, labels, with_rows=sheds))
    return files


def _runs(
    scene: SimulatedScene, arms: Mapping[str, ClusterConfig], seeds: Sequence[int]
) -> dict[str, tuple[SimulatedRun, ...]]:
    experiment = Experiment.on(scene.spec_with_concern(), seeds, scene.stream)
    done: dict[str, tuple[SimulatedRun, ...]] = {}
    for config in arms.values():
        if key_of(config) not in done:
            config_run = scene.config_with_concern(config)
            read = functools.partial(run_of, denied=denied_as(config))
            (done[key_of(config)],) = experiment.summaries([config_run], read)
    return {arm: done[key_of(config)] for arm, config in arms.items()}


# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Labels:
    """Compute the ids of a run."""

    scene: SimulatedScene
    arm: str
    config: ClusterConfig
    seed: int
    translation: str

    @property
    def experiment(self) -> str:
        """Return the id that all runs of a scene share."""
        return f"{self.translation}/{self.scene.name}"

    @property
    def cluster(self) -> str:
        """Return the id of what all arms share: the coefficients and the number of instances."""
        config = self.config
        common = (
            config.model, config.hardware, config.tp, config.alpha_coeffs, config.beta_coeffs,
            config.num_instances,
        )  # fmt: skip
        return hashlib.sha256(repr(common).encode()).hexdigest()[:16]

    @property
    def uid(self) -> str:
        """Return the id of the run."""
        text = f"{self.translation} {self.cluster} {self.scene.key} {self.arm} {self.seed}"
        return f"sim-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _report(run: SimulatedRun, labels: _Labels) -> dict[str, Any]:
    served = run.is_served
    rate = labels.scene.rate(run.seconds, len(served))
    lengths = {
        "input_length": _statistics(run.input_len[served].astype(float), "count", 1.0),
        "output_length": _statistics(run.output_len[served].astype(float), "count", 1.0),
    }
    latency = {
        "time_to_first_token": _statistics(run.ttft_us, "s", _US),
        "time_per_output_token": _statistics(run.tpot_us, "s/token", _US),
        "request_latency": _statistics(run.e2e_us, "s", _US),
    }
    tokens = {
        "input_token_rate": float(run.input_len[served].sum()),
        "output_token_rate": float(run.output_len[served].sum()),
    }
    tokens["total_token_rate"] = sum(tokens.values())
    throughput = {
        name: {"units": "tokens/s", "mean": run.per_second(value)} for name, value in tokens.items()
    } | {"request_rate": {"units": "queries/s", "mean": run.per_second(float(served.sum()))}}
    requests = {
        "total": len(served),
        "failures": int((~served).sum()) - run.num_unfinished,
        "incomplete": run.num_unfinished,
        **_present(lengths),
    }
    return {
        "version": "0.2.1",
        "run": {
            "uid": labels.uid,
            "eid": labels.experiment,
            "cid": labels.cluster,
            "description": f"simulated by {TOOL} {__version__}: {labels.scene.about}, arm {labels.arm}, "
            f"seed {labels.seed}, {run.outcome}",
            "keywords": [SIMULATED_MARK, labels.scene.name, labels.arm],
        },
        "scenario": {"stack": [_component(labels)], "load": _load(run, rate)},
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": requests,
                    "latency": _present(latency),
                    "throughput": throughput,
                }
            }
        },
    }


def _component(labels: _Labels) -> dict[str, Any]:
    """Return the stack entry for the arm's configuration; the control has the baseline's with an id of its own."""
    mark = "plugin path, " if labels.arm == "control" else ""
    cfg_id = hashlib.sha256(f"{mark}{key_of(labels.config)}".encode()).hexdigest()[:16]
    return {
        "metadata": {
            "label": "cluster",
            "cfg_id": cfg_id,
            "description": f"{mark}{labels.config.profile}",
        },
        "standardized": {"kind": "generic", "tool": TOOL, "tool_version": __version__},
        "native": {},
    }


def _load(run: SimulatedRun, rate: float) -> dict[str, Any]:
    mean_in, mean_out = float(run.input_len.mean()), float(run.output_len.mean())
    return {
        "metadata": {"schema_version": "0.0.1"},
        "standardized": {
            "tool": TOOL,
            "tool_version": __version__,
            "source": "sampled",
            "stage": 0,
            "parallelism": 1,
            "rate_qps": _rounded(rate),
            "input_seq_len": {"distribution": "other", "value": _rounded(mean_in)},
            "output_seq_len": {"distribution": "other", "value": _rounded(mean_out)},
        },
        "native": {},
    }


def _statistics(values: np.ndarray, units: str, scale: float) -> dict[str, Any] | None:
    """Return statistics of the finite values, divided by `scale`; None if there are none."""
    known = values[np.isfinite(values)] / scale
    if not len(known):
        return None
    figures = {"mean": known.mean(), "stddev": known.std(), "min": known.min(), "max": known.max()}
    figures |= dict(zip(QUANTILES, np.quantile(known, list(QUANTILES.values())), strict=True))
    return {"units": units, **{name: _rounded(float(value)) for name, value in figures.items()}}


# --- by class -------------------------------------------------------------------------------------


def _by_class(run: SimulatedRun, labels: _Labels, *, with_rows: bool) -> dict[str, Any]:
    """Return the results in the form of the priority-mix harness, with the id of the run."""
    names, served = np.array(run.classes), run.is_served
    classes = {}
    for name in dict.fromkeys(run.classes):
        of_class = names == name
        classes[name] = {
            "requests": int(of_class.sum()),
            "successes": int((of_class & served).sum()),
            "errors": int((of_class & ~served).sum()),
            "ttft_ms": _summary(run.ttft_us[of_class]),
            "tpot_ms": _summary(run.tpot_us[of_class]),
            "latency_ms": _summary(np.where(served, run.e2e_us, run.decided_us)[of_class]),
            "output_tokens": int(run.output_len[of_class & served].sum()),
        }
    summary = {
        "total_requests": len(served),
        "successes": int(served.sum()),
        "errors": int((~served).sum()),
        "offered": {
            "requests": len(served),
            "seconds": len(served) / labels.scene.rate(run.seconds, len(served)),
        },
        "traffic_classes": classes,
    }
    document = {"run": {"uid": labels.uid, "keywords": [SIMULATED_MARK]}, "summary": summary}
    return document | ({"requests": _rows(run)} if with_rows else {})


def _summary(values_us: np.ndarray) -> dict[str, float]:
    """Return mean and percentiles in ms; 0.0 for no data, as the harness writes it."""
    known = values_us[np.isfinite(values_us)] / 1000
    if not len(known):
        return {"avg": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0}
    at = np.quantile(known, (0.5, 0.95, 0.99))
    values = dict(zip(("avg", "p50", "p95", "p99"), (known.mean(), *at), strict=True))
    return {name: _rounded(float(value)) for name, value in values.items()}


def _rows(run: SimulatedRun) -> list[dict[str, Any]]:
    latency = np.where(run.is_served, run.e2e_us, run.decided_us)
    return [
        {
            "traffic_class": run.classes[place],
            "status_code": run.status[place],
            "latency_ms": _or_none(latency[place]),
            "ttft_ms": _or_none(run.ttft_us[place]),
            "tpot_ms": _or_none(run.tpot_us[place]),
            "output_tokens": int(run.output_len[place]) if run.status[place] == 200 else 0,
            "error": None if run.status[place] else "not finished",
        }
        for place in range(len(run.status))
    ]


def _or_none(value_us: float) -> float | None:
    return finite(_rounded(float(value_us) / 1000))


# --- texts ----------------------------------------------------------------------------------------


def _rounded(value: float) -> float:
    return round(value, _DIGITS)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _yaml(document: Mapping[str, Any]) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=110))


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
