"""The three tracks of hypotheses: confirmed claims (A), gaps of the simulator (B), and what must not change (C)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.router import slo_targets
from blis_jax.traces.measured.llmd_report import AGGREGATE
from blis_jax.workload.spec import WorkloadSpec
from sweeps.claims.words import CROSS_POLICY, DOMINANCE, EQUIVALENCE, ROBUSTNESS, UQ, VALIDATION
from sweeps.promote.evidence.hypotheses import (
    GOODPUT,
    BaselineScenario,
    MetricPath,
    OfferedTraffic,
    OperatingPoint,
    ProfileChoice,
    TransferHypothesis,
    inventory,
    known_metric,
    metric_path,
    scenario_workload,
)
from sweeps.promote.evidence.origins import (
    FILLS,
    SAME_PERCENT,
    SEEDS,
    ConfirmedClaim,
    needs_classes,
    saturation_rate,
    traffic_of,
)
from sweeps.promote.evidence.reports import CLASSES, REACHED
from sweeps.promote.llmd.deployment import workload_of_promotion
from sweeps.promote.maps import GapRow, SignalRow
from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.store import NOT_MEASURED

_IDLE_PREFILL = "its prefill pods get no request, as no connector moves KV from them; the simulator has none of them"
_POOLS_SHARE = "prompts move between its pods, and the share of saturation is that of as many pods without roles"
_EQUAL_LOAD = "offered load, prompt lengths and output lengths agree between the arms"
_REACHED = f"the load that was really sent reaches {REACHED:.0%} of the one that was asked for"
_ALWAYS = "The signal has this age in every run on the target, so the runs of track A are those of this hypothesis."
_NO_FAILURES = "no request fails that is not meant to be shed"
_CALIBRATED = (
    "saturation is measured on the cluster first, and the rate is set to the same share of it"
)


@dataclass(frozen=True)
class TrackMaker:
    """Hold what the hypotheses of one promotion share."""

    promotion: Promotion
    files: Files  # of earlier stages

    @functools.cached_property
    def spec(self) -> WorkloadSpec:
        """Return the workload that the strategy was made for."""
        return workload_of_promotion(self.promotion)

    @functools.cached_property
    def own_traffic(self) -> OfferedTraffic:
        """Return the traffic of the workload that the strategy was made for."""
        return self.traffic(self.spec, self.promotion.workload_name, None)

    def traffic(self, spec: WorkloadSpec, name: str, rate: float | None) -> OfferedTraffic:
        """Return the traffic of a workload, with the deadlines by which the router's queue orders requests."""
        config = self.promotion.arm.config
        is_by_deadline = config.flow_control and config.dispatch_order == "slo-deadline"
        targets = slo_targets(config.slo_targets) if is_by_deadline else {}
        headers = {slo_class: round(us / 1000) for slo_class, us in targets.items()}
        return traffic_of(spec, name, rate, self.files, headers)

    @functools.cached_property
    def needs_classes(self) -> bool:
        """Return whether the treatment has an effect only if requests name their class."""
        return needs_classes(self.files)

    def point(
        self, spec: WorkloadSpec, rate: float, seeds: tuple[int, ...] = SEEDS, fills: int = FILLS
    ) -> OperatingPoint:
        """Return an operating point: a rate as a share of the baseline's saturation rate."""
        config = self.promotion.baseline.config
        saturation = saturation_rate(config, spec, seeds, fills)
        return OperatingPoint(
            saturation_rate=saturation,
            share=float(f"{rate / saturation:.4g}"),
            measured_by="simulation of the baseline with the target's coefficients, common seeds",
        )

    def objective(self) -> tuple[MetricPath, str]:
        """Return figure and words of the strategy's first objective that reports have; else those of the p99 TTFT."""
        strategy = self.promotion.arm.strategy
        for objective in strategy.objectives if strategy is not None else ():
            figure = metric_path(objective.metric)
            if figure is not None:
                return figure
        return known_metric("ttft_p99_ms")


# --- A: what was confirmed --------------------------------------------------------------------------


def track_a(maker: TrackMaker, claims: Sequence[ConfirmedClaim]) -> Iterator[TransferHypothesis]:
    """Yield a hypothesis per confirmed claim; one for the objective if no claim is a change; one for control."""
    for claim in claims:
        yield _of_claim(maker, claim)
    if not any(claim.direction != "same" for claim in claims):
        yield _of_objective(maker)
    yield _control(maker)


def _of_claim(maker: TrackMaker, claim: ConfirmedClaim) -> TransferHypothesis:
    metric, words = known_metric(claim.metric)
    verb = {"lower": "lowers", "higher": "raises", "same": "keeps"}[claim.direction]
    notes = (claim.note,) if claim.note else ()
    return _made(
        maker,
        f"A-{claim.name}",
        statement=(
            f"Under workload {claim.workload}, {maker.promotion.name} {verb} the {words} against "
            f"{maker.promotion.baseline.name}"
            + (f": {claim.statement}" if claim.statement else ".")
        ),
        metric=metric,
        kind=(claim.family, claim.type, claim.vvuq),
        direction=claim.direction,
        mechanism=claim.mechanism,
        diagnostic=claim.diagnostic,
        origin=claim.origin,
        on=(claim.spec, maker.traffic(claim.spec, claim.workload, claim.rate)),
        magnitude=claim.magnitude,
        tolerance=claim.tolerance,
        scene=f"workload-{claim.workload}" + (f"-at-{claim.rate:g}" if claim.rate else ""),
        preconditions=(_EQUAL_LOAD, _REACHED, _NO_FAILURES, _CALIBRATED, *notes),
    )


def _of_objective(maker: TrackMaker) -> TransferHypothesis:
    metric, words = maker.objective()
    strategy = maker.promotion.arm.strategy
    description = strategy.description if strategy is not None else ""
    return _made(
        maker,
        "A-objective",
        statement=(
            f"Under workload {maker.promotion.workload_name}, {maker.promotion.name} has a better {words} than "
            f"{maker.promotion.baseline.name}."
        ),
        metric=metric,
        kind=(CROSS_POLICY, DOMINANCE, VALIDATION),
        direction=metric.better,
        mechanism=description or "the mechanism of the strategy's policies",
        diagnostic="If this fails, the simulated gain does not transfer: look at track B for the cause.",
        origin="objective of the strategy file; no row of the ledger confirms it at this point",
    )


def _control(maker: TrackMaker) -> TransferHypothesis:
    metric, words = known_metric("ttft_mean_ms")
    return _made(
        maker,
        "A-control",
        statement=(
            f"The control arm, with the new plugins at work but without effect, keeps the {words} of "
            f"{maker.promotion.baseline.name} within {SAME_PERCENT:g} %."
        ),
        metric=metric,
        kind=(CROSS_POLICY, EQUIVALENCE, UQ),
        direction="same",
        mechanism="the plugins are computed for each request and change no pick, so only their own time is left",
        diagnostic="If this fails, the plugin path itself costs time: profile it before judging the policy.",
        origin="control-negative: the effect must vanish without the policy",
        arms=("baseline", "control"),
    )


def _made(
    maker: TrackMaker,
    name: str,
    *,
    statement: str,
    metric: MetricPath,
    kind: tuple[str, str, str],
    direction: str,
    mechanism: str,
    diagnostic: str,
    origin: str,
    on: tuple[WorkloadSpec, OfferedTraffic] | None = None,
    magnitude: Any = NOT_MEASURED,
    tolerance: float = SAME_PERCENT,
    at: tuple[Any, ...] = (),
    **changes: Any,
) -> TransferHypothesis:
    """Return a hypothesis on a workload and its traffic; by default on the strategy's own.

    `kind` is (family, type, category); `at` is (seeds, fills) of the runs that measure the operating point.
    """
    spec, traffic = on or (maker.spec, maker.own_traffic)
    family, type_, vvuq = kind
    expected = {"direction": direction, "magnitude_sim": magnitude, "tolerance": tolerance}
    values: dict[str, Any] = {
        "id": name,
        "track": name[0],
        "statement": statement,
        "family": family,
        "vvuq": vvuq,
        "type": type_,
        "metric": metric,
        "expected": expected,
        "scene": f"workload-{traffic.name}".replace(" ", "-"),
        "workload": traffic,
        "operating_point": maker.point(spec, traffic.rate, *at),
        "profile": _profile(maker, metric, traffic),
        "preconditions": (_EQUAL_LOAD, _REACHED, _NO_FAILURES, _CALIBRATED),
        "mechanism": mechanism,
        "diagnostic": diagnostic,
        "origin": origin,
    }
    return TransferHypothesis.model_validate(values | changes)


def _profile(maker: TrackMaker, metric: MetricPath, traffic: OfferedTraffic) -> ProfileChoice:
    """Choose the harness: priority-mix to send or measure classes, guidellm for sessions, else inference-perf."""
    by_class = metric.path == GOODPUT or maker.needs_classes
    if metric.path.startswith(CLASSES) or (traffic.classes and by_class):
        return ProfileChoice(harness="priority-mix")
    return ProfileChoice(harness="guidellm" if traffic.turns > 1 else "inference-perf")


# --- B: what the simulator has no model of ----------------------------------------------------------


def track_b(
    maker: TrackMaker, gaps: Sequence[GapRow], signals: Sequence[SignalRow]
) -> Iterator[TransferHypothesis]:
    """Yield a hypothesis for each row of Map C, and one for each signal in use that is less fresh in llm-d."""
    for gap in gaps:
        yield _of_gap(maker, gap)
    for signal in signals:
        if signal.gap:
            yield _of_freshness(maker, signal, gaps)


def _of_gap(maker: TrackMaker, gap: GapRow) -> TransferHypothesis:
    metric, words = maker.objective()
    names = {
        "treatment": maker.promotion.name,
        "baseline": maker.promotion.baseline.name,
        "metric": words,
    }
    choice = _choice_of(gap, _profile(maker, metric, maker.own_traffic))
    return _made(
        maker,
        f"B-{gap.id}",
        statement=gap.statement.format(**names),
        metric=metric,
        kind=(ROBUSTNESS, DOMINANCE, VALIDATION),
        direction=metric.better,
        mechanism=gap.mechanism,
        diagnostic=gap.diagnostic,
        origin=f"Map C: {gap.id}",
        scene=f"gap-{gap.id}",
        **_stress_of(gap),
        preconditions=(
            _EQUAL_LOAD,
            _REACHED,
            _CALIBRATED,
            f"the stress is at work in every arm: {gap.stress}",
        ),
        profile=choice,
    )


def _stress_of(gap: GapRow) -> dict[str, Any]:
    return {"setup": gap.setup, "picker": gap.picker, "knobs": gap.profile}


def _choice_of(gap: GapRow, usual: ProfileChoice) -> ProfileChoice:
    """Return the harness for a gap's profile, or the reason why no profile can produce the gap's stress."""
    if gap.no_profile:
        return ProfileChoice(reason=gap.no_profile)
    if "ignore_eos" in gap.profile and usual.harness != "inference-perf":
        reason = f"{usual.harness} lets the model end its answers in every run, so those of track A are these too"
        return ProfileChoice(reason=reason)
    return usual


def _of_freshness(
    maker: TrackMaker, signal: SignalRow, gaps: Sequence[GapRow]
) -> TransferHypothesis:
    metric, words = maker.objective()
    related = next((gap for gap in gaps if signal.name in gap.signals), None)
    stress = related.stress if related is not None else signal.gap
    usual = (
        _profile(maker, metric, maker.own_traffic)
        if related is not None
        else ProfileChoice(reason=_ALWAYS)
    )
    origin = f"Map B: {signal.name}" + (f"; Map C: {related.id}" if related is not None else "")
    return _made(
        maker,
        f"B-fresh-{signal.name.replace('_', '-')}",
        statement=(
            f"With {signal.name} as old as llm-d has it ({signal.gap}), {maker.promotion.name} still has a better "
            f"{words} than {maker.promotion.baseline.name}."
        ),
        metric=metric,
        kind=(ROBUSTNESS, DOMINANCE, VALIDATION),
        direction=metric.better,
        mechanism=f"in the simulator the signal is {signal.here}; in llm-d: {signal.there}",
        diagnostic=(
            f"If this fails, {signal.name} is too old there for the policy: simulate its age before the next search, "
            "or read another signal."
        ),
        origin=origin,
        scene=f"gap-{related.id}"
        if related is not None
        else f"fresh-{signal.name.replace('.', '-')}",
        **({} if related is None else _stress_of(related)),
        preconditions=(
            _EQUAL_LOAD,
            _REACHED,
            _CALIBRATED,
            f"the age of the signal is recorded: {stress}",
        ),
        profile=usual if related is None else _choice_of(related, usual),
    )


# --- C: what must not change ------------------------------------------------------------------------


def track_c(maker: TrackMaker) -> Iterator[TransferHypothesis]:
    """Yield a hypothesis for each baseline scenario of the pinned inventory: nothing changes by more than 5 %."""
    for scenario in inventory().scenarios:
        yield _of_scenario(maker, scenario)


def _of_scenario(maker: TrackMaker, scenario: BaselineScenario) -> TransferHypothesis:
    pinned = inventory()
    spec = scenario_workload(scenario.workload)
    lacks = {"decode": (_IDLE_PREFILL,), "prefill-decode": (_POOLS_SHARE,)}.get(scenario.roles, ())
    instead = (scenario.instead,) if scenario.instead else ()
    return _made(
        maker,
        f"C-{scenario.name.replace('/', '-')}",
        statement=(
            f"In the baseline scenario {scenario.name}, {maker.promotion.name} keeps the mean time to completion of "
            f"{maker.promotion.baseline.name} within {SAME_PERCENT:g} %."
        ),
        metric=MetricPath(
            path=f"{AGGREGATE}.latency.request_latency", statistic="mean", unit="ms", better="lower"
        ),
        kind=(CROSS_POLICY, EQUIVALENCE, UQ),
        direction="same",
        mechanism="the scenario has no classes and little load, so nothing that the strategy changes comes to bear",
        diagnostic=(
            "If this fails, the change is not safe as a default: find the knob that did it in the ablation arms, and "
            "keep the change to pools that ask for it."
        ),
        origin=f"{pinned.repository}@{pinned.commit[:12]} {pinned.folder}/{scenario.name}.yaml",
        on=(spec, maker.traffic(spec, scenario.workload, None)),
        at=(SEEDS[:1], 2),
        scene=f"scenario-{scenario.name.replace('/', '-')}",
        profile=ProfileChoice(
            reason=f"no profile: {scenario.left_out}"
            if scenario.left_out
            else f"the scenario's own profile is used: {scenario.harness}/{scenario.profile}"
        ),
        pods=scenario.pods,
        preconditions=(_EQUAL_LOAD, _NO_FAILURES, *instead, *lacks),
    )
