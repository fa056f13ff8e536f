"""The origins of hypotheses: claims that the ledger confirmed for a strategy; workloads' traffic and saturation."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from blis_jax.cluster.config import NO_HORIZON, ClusterConfig
from blis_jax.files.content import digest
from blis_jax.files.strict_yaml import read_yaml
from blis_jax.metrics.metric import ALL, split_name
from blis_jax.records.record import RunRecord
from blis_jax.workload.spec import WorkloadSpec, override, parse_spec
from sweeps.claims.grammar import REGION, Claim
from sweeps.claims.words import (
    CONFIRMED,
    CROSS_POLICY,
    DOMINANCE,
    EQUIVALENCE,
    PARETO,
    UQ,
    VALIDATION,
)
from sweeps.ledger.book import RECORDS, Ledger, LedgerRow
from sweeps.ledger.trial import BASELINE as OF_LEDGER
from sweeps.ledger.trial import REFERENCE, STRATEGY
from sweeps.promote.evidence.hypotheses import NotTransferred, OfferedTraffic
from sweeps.promote.llmd.deployment import class_shares
from sweeps.promote.llmd.documents import CONFIG, OVERLAY
from sweeps.promote.maps import objective_name
from sweeps.promote.promotion import (
    BASELINE,
    ENGINE_PRIORITY,
    TREATMENT,
    Files,
    Promotion,
    file_named,
)
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_from
from sweeps.strategies.arms import settings_of

SAME_PERCENT = 5.0  # smaller changes count as none


@dataclass(frozen=True)
class ConfirmedClaim:
    """Hold one confirmed claim, to be tested again on a cluster."""

    name: str  # id without the track
    statement: str
    metric: str  # of the simulator
    direction: str
    magnitude: Mapping[str, float] | str  # change in % against the baseline, with its interval
    tolerance: float
    family: str
    type: str
    vvuq: str
    workload: str
    spec: WorkloadSpec
    rate: float | None
    mechanism: str
    diagnostic: str
    origin: str
    note: str = ""


def confirmed_claims(
    promotion: Promotion, folder: Path
) -> tuple[list[ConfirmedClaim], list[NotTransferred]]:
    """Return the claims of ledger rows that confirm the strategy at these settings, and rows left out, with reasons.

    Args:
        promotion: the strategy.
        folder: the folder of the ledger; if it holds no ledger, both lists are empty.
    """
    strategy = promotion.arm.strategy
    if strategy is None or not (folder / RECORDS).is_file():
        return [], []
    wanted = digest(settings_of(promotion.arm.config))
    claims: list[ConfirmedClaim] = []
    left: list[NotTransferred] = []
    for row in Ledger(folder).rows():
        arm = row.hypothesis.arms.get(STRATEGY)
        if arm is None or arm.strategy != strategy.name or not _is_confirmed(row):
            continue
        if arm.hash != wanted:
            left.append(NotTransferred(row=row.id, reason=f"it confirms another point, {arm.text}"))
            continue
        confirmed, others = _claims_of(row)
        claims += confirmed
        left += others
    return claims, left


def _is_confirmed(row: LedgerRow) -> bool:
    return row.result is not None and row.result["verdict"] == CONFIRMED


def _claims_of(row: LedgerRow) -> tuple[list[ConfirmedClaim], list[NotTransferred]]:
    claims, left = [], []
    for place, claim in enumerate(row.hypothesis.claims, 1):
        problem, direction, magnitude = _direction(row, claim)
        if problem:
            left.append(NotTransferred(row=row.id, reason=f"{claim.text}: {problem}"))
        else:
            claims.append(_claim(row, claim, place, direction, magnitude))
    return claims, left


def _direction(row: LedgerRow, claim: Claim) -> tuple[str, str, Mapping[str, float]]:
    """Return (reason, direction, simulated change in %) of a claim; the reason is empty if the arms can test it."""
    if claim.shape != REGION:
        return "a shape along a setting, and the three arms are one point", "", {}
    if not claim.is_change:
        return "a value of the simulated cluster, not a change against the baseline", "", {}
    mean, low, high = _change(row, claim.metric)
    if mean is None or low is None or high is None:
        return "the ledger has no change against the baseline", "", {}
    magnitude = {"percent": mean, "low": low, "high": high}
    if low >= -SAME_PERCENT and high <= SAME_PERCENT:
        return "", "same", magnitude
    if low > 0 or high < 0:
        return "", "lower" if high < 0 else "higher", magnitude
    if claim.is_effect and not _has_other_reference(row):
        return "", "lower" if claim.high < 0 else "higher", magnitude
    return "the change against the baseline is not resolved in simulation", "", {}


def _has_other_reference(row: LedgerRow) -> bool:
    """Return whether the row's claims compare with an arm other than the baseline."""
    arms = row.hypothesis.arms
    return REFERENCE in arms and arms[REFERENCE].hash != arms[OF_LEDGER].hash


def _change(row: LedgerRow, metric: str) -> tuple[float | None, float | None, float | None]:
    name, slo_class = split_name(metric)
    comparison: Mapping[str, Any] = row.result["comparison"] if row.result else {}
    figures = comparison.get(slo_class or ALL, {}).get(name, {})
    mean, low, high = figures.get("percent", (None, None, None))
    return mean, low, high


def _claim(
    row: LedgerRow, claim: Claim, place: int, direction: str, magnitude: Mapping[str, float]
) -> ConfirmedClaim:
    hypothesis = row.hypothesis
    assert hypothesis.workload is not None and row.result is not None  # it has been run
    is_same = direction == "same"
    is_direct = not _has_other_reference(row)
    keeps = hypothesis.type in (DOMINANCE, PARETO)
    spec = workload_from(hypothesis.workload.name)
    return ConfirmedClaim(
        name=f"{row.id.lower()}.{place}",
        statement=hypothesis.statement if is_direct else "",
        metric=claim.metric,
        direction=direction,
        magnitude=magnitude,
        tolerance=SAME_PERCENT,
        family=CROSS_POLICY if is_same or not keeps else hypothesis.family,
        type=EQUIVALENCE if is_same else hypothesis.type if keeps else DOMINANCE,
        vvuq=UQ if is_same else VALIDATION,
        workload=hypothesis.workload.name,
        spec=spec,
        rate=hypothesis.workload.rate,
        mechanism=hypothesis.mechanism,
        diagnostic=(
            f"If this fails: {hypothesis.diagnostic}."
            if is_direct
            else "If this fails, the change against the baseline does not transfer: look at track B for the cause. The "
            f"ledger's clause, against another arm: {hypothesis.diagnostic}."
        ),
        origin=(
            f"ledger row {row.id}, claim {claim.text!r}, record {row.result['number']} "
            f"{str(row.result['hash'])[:12]}"
        ),
        note=hypothesis.preconditions,
    )


def tokens_of_request(spec: WorkloadSpec) -> float:
    """Return the mean number of tokens of a request: prompt, shared prefix and answer."""
    total = sum(client.rate_fraction for client in spec.clients)
    prefix = sum(client.rate_fraction * client.prefix_length for client in spec.clients) / total
    return (
        sum(lengths(spec, f"{part}_distribution")["mean"] for part in ("input", "output")) + prefix
    )


def lengths(spec: WorkloadSpec, field: str) -> dict[str, float]:
    """Return mean, standard deviation, min and max of a length over all clients, weighted by their rates."""
    parts, total = [], sum(client.rate_fraction for client in spec.clients)
    for client in spec.clients:
        law = getattr(client, field)
        parts.append((client.rate_fraction / total, *_moments(law.model_dump(mode="json"))))
    mean = sum(share * mean for share, mean, *_ in parts)
    variance = sum(share * (std**2 + (at - mean) ** 2) for share, at, std, *_ in parts)
    return {
        "mean": round(mean, 1),
        "std_dev": round(variance**0.5, 1),
        "min": min(low for *_, low, _ in parts),
        "max": max(high for *_, high in parts),
    }


def _moments(law: Mapping[str, Any]) -> tuple[float, float, int, int]:
    """Return mean, standard deviation, least and greatest length of a law; the mean ignores the bounds."""
    kind, params = law["type"], law["params"]
    if kind == "constant":
        value = int(params["value"])
        return value, 0.0, value, value
    if kind == "empirical":
        total = sum(params.values())
        shares = {int(length): weight / total for length, weight in params.items()}
        mean = sum(length * share for length, share in shares.items())
        variance = sum(share * (length - mean) ** 2 for length, share in shares.items())
        return mean, variance**0.5, min(shares), max(shares)
    if kind == "pareto_lognormal":
        share, alpha = params["mix_weight"], max(float(params["alpha"]), 1.1)
        of_pareto = alpha * params["xm"] / (alpha - 1)
        mean = share * of_pareto + (1 - share) * math.exp(params["mu"] + params["sigma"] ** 2 / 2)
    else:
        mean = float(params["mean"])
    spread = float(params.get("std_dev") or mean)  # an exponential law's is its mean
    low = int(params.get("min") or 1)
    high = int(params.get("max") or max(low + 1, round(mean + 8 * spread)))
    return mean, spread, low, high


USUAL_REQUESTS = 1000
NO_HEADERS: Mapping[str, int] = MappingProxyType({})


def traffic_of(
    spec: WorkloadSpec,
    name: str,
    rate: float | None,
    files: Files,
    headers: Mapping[str, int] = NO_HEADERS,
) -> OfferedTraffic:
    """Return the traffic of a workload.

    Args:
        spec: the workload.
        name: the workload's name in the simulator.
        rate: requests per second; None for the workload's own rate.
        files: the files of earlier stages, from which the priorities of the classes are read.
        headers: by class, the deadline that requests send to the router's queue, ms.
    """
    shares = class_shares(spec)
    objectives = _objectives(files)
    classes = tuple(
        {"name": slo_class, "share": round(share, 6), "objective": objective_name(slo_class)}
        | {"priority": objectives.get(objective_name(slo_class), 0)}
        | ({"ttft_header_ms": headers[slo_class]} if slo_class in headers else {})
        for slo_class, share in shares.items()
    )
    has_classes = any(client.slo_class for client in spec.clients)
    prefixes = {
        client.prefix_group: client.prefix_length for client in spec.clients if client.prefix_group
    }
    turns = [client.multi_turn.max_rounds for client in spec.clients if client.multi_turn]
    return OfferedTraffic(
        name=name,
        rate=float(f"{rate or spec.aggregate_rate or 1.0:.6g}"),
        requests=spec.num_requests or USUAL_REQUESTS,
        prompt=lengths(spec, "input_distribution"),
        output=lengths(spec, "output_distribution"),
        prefix_tokens=max(prefixes.values(), default=0),
        prefix_groups=max(len(prefixes), 1),
        turns=max(turns, default=1),
        classes=classes if has_classes else (),
    )


def _objectives(files: Files) -> dict[str, int]:
    """Return the treatment arm's objective priorities by name; the baseline's where the treatment sets none."""
    priorities: dict[str, int] = {}
    for arm in (BASELINE, TREATMENT):
        path = file_named(files, f"arms/{arm}/{OVERLAY}")
        overlay = read_yaml(files[path], path) if path else {}
        rows = overlay.get("router", {}).get("inferenceObjectives")
        priorities |= {str(row["name"]): int(row["priority"]) for row in rows or ()}
    return priorities


def needs_classes(files: Files) -> bool:
    """Return whether the treatment orders or decides by a request's class, which the request's objective names."""
    return writes_priority(files, TREATMENT) or len(set(_objectives(files).values())) > 1


def writes_priority(files: Files, arm: str) -> bool:
    """Return whether the picker of an arm writes the engine's priority into requests."""
    path = file_named(files, f"arms/{arm}/{CONFIG}")
    plugins = (read_yaml(files[path], path) or {}).get("plugins", ()) if path else ()
    return any(plugin["type"] == ENGINE_PRIORITY and plugin.get("parameters") for plugin in plugins)


SEEDS = (42, 123, 456)
FILLS = 3  # requests for each place of the running batch
AT_ONCE = 1e6  # requests/s: all are there before the first is served
MOST_KV = 0.9  # share of the KV blocks that the requests may need, so that none is evicted
DIGITS = 3


def saturation_rate(
    config: ClusterConfig, spec: WorkloadSpec, seeds: tuple[int, ...] = SEEDS, fills: int = FILLS
) -> float:
    """Return the requests per second that a cluster completes while work waits at every instance.

    Each kind of instance is measured alone, with a queue that fills its batch several times, and is counted as often
    as the cluster has it. This assumes perfect balance by the router and no CPU tier. The result is the median over the
    seeds; it is cached per configuration.

    Args:
        config: the cluster with its coefficients; its admission policy and its horizon are ignored.
        spec: the workload; its lengths and prefixes are used, its rate is not.
        seeds: the seeds of the runs; one is enough where all lengths are equal.
        fills: requests per slot of the running batch, at least 2; 2 are enough where all lengths are equal.
    """
    content = json.dumps(spec.content(), sort_keys=True)
    numbers = [pair for pair in config.policy_numbers if not pair[0].startswith("admission.")]
    total = 0.0
    for group in config.instances or (None,):
        instance = dataclasses.replace(
            config,
            instances=(),
            num_instances=1,
            admission_policy="always-admit",
            policy_numbers=tuple(numbers),
            horizon=NO_HORIZON,
            **((group.numbers() if group is not None else {}) | {"kv_cpu_blocks": 0}),
        )
        count = group.count if group is not None else config.num_instances
        total += count * _of_one_instance(instance, content, seeds, fills)
    return float(f"{total:.{DIGITS}g}")


@functools.lru_cache(maxsize=64)
def _of_one_instance(
    config: ClusterConfig, content: str, seeds: tuple[int, ...], fills: int
) -> float:

    spec = parse_spec(content)
    blocks = tokens_of_request(spec) / config.block_size_in_tokens
    fitting = int(MOST_KV * config.total_kv_blocks / blocks)
    count = max(1, min(fills * config.max_num_running_reqs, fitting))
    at_once = override(spec, num_requests=count, aggregate_rate=AT_ONCE, horizon=0)
    (rates,) = Experiment.on(at_once, seeds, "jax").summaries(
        [config], lambda run: _completions_per_s(run, config.max_num_running_reqs)
    )
    return float(np.median(rates))


def _completions_per_s(run: RunRecord, places: int) -> float:
    """Return completions per s between the time when every batch slot is filled and the time when the queue empties.

    In between, each request that ends lets one begin. Where there are no more requests than slots, no request
    waits; then all completions count, from the first arrival to the last completion.
    """
    requests = run.requests
    waited = requests.first_sched_delay_us
    begins = np.sort((requests.arrival_us + waited)[waited >= 0])
    ends = requests.left_us[requests.left_us >= 0]
    if len(begins) > places:
        first, last = int(begins[places - 1]), int(begins[-1])
        done = int(np.count_nonzero((ends > first) & (ends <= last)))
    else:
        first, last, done = int(requests.arrival_us.min()), int(ends.max()), len(ends)
    return float(done / (last - first) * 1e6)
