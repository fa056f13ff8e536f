"""The YAML workload specification as BLIS reads it since August 2026.

Parts that are not defined here are as in `blis_jax.workload.spec_parts`. New are cohorts, closed-loop sessions, pools
of concurrent users, deadlines, windows with laws of their own, and workloads without a common rate.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from blis_jax.errors import ConfigWarning, closest, shortened
from blis_jax.workload.inference_perf import check_clients
from blis_jax.workload.length_laws import (
    REVISED_LAW_TYPES,
    Count,
    NonNegative,
    Positive,
    RevisedLengthLaw,
    Strict,
    Whole,
    problem_at,
)
from blis_jax.workload.servegen.keys import RevisedServeGen
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec_parts import (
    ActiveWindow,
    AdapterPopularity,
    ArrivalSpec,
    ClassTargets,
    ClientSpec,
    LifecycleSpec,
    MultimodalSpec,
    MultiTurnSpec,
    NetworkSpec,
    ReasoningSpec,
    WorkloadSpec,
)

ABSOLUTE = "without an aggregate_rate every client needs rates of its own"


def check_pace(client: RevisedClient) -> None:
    """Refuse a client unless it has either a share of the rate with an arrival law, or a number of concurrent users."""
    if client.concurrency and client.rate_fraction:
        raise problem_at(
            ["concurrency"],
            f"got {client.concurrency} beside rate_fraction {client.rate_fraction:g}, allowed is one "
            "of them; leave rate_fraction out",
        )
    if client.concurrency:
        return
    for name in ("rate_fraction", "arrival"):
        if name not in client.model_fields_set:
            raise problem_at([name], "missing, but it must be given, or concurrency in its place")
    if not client.rate_fraction:
        raise problem_at(["rate_fraction"], "got 0, allowed is a number greater than 0")


def check_sources(workload: RevisedWorkload) -> None:
    """Refuse a workload without a source, with contradicting ones, or without settings its rates and classes need."""
    sources = ("clients", "servegen_data", "inference_perf")
    present = [name for name in sources if getattr(workload, name)]
    if len(present) > 1:
        raise problem_at(
            [present[1]],
            f"given beside {present[0]}, allowed is one of {', '.join(sources)}; leave one out",
        )
    if not present and not workload.cohorts:
        raise problem_at(["clients"], "no client is given, allowed is one or more, or cohorts")
    if not workload.aggregate_rate and "inference_perf" not in present:
        _check_absolute_rates(workload)
    if workload.inference_perf is not None:
        check_clients(workload.inference_perf)
    if workload.adapters is not None and any(client.concurrency for client in workload.clients):
        why = "given beside clients with concurrency, whose users cannot be split; give these an adapter each"
        raise problem_at(["adapters"], why)
    _check_classes(workload)
    _check_sessions(workload)


def _check_absolute_rates(workload: RevisedWorkload) -> None:
    for index, client in enumerate(workload.clients):
        windows = client.lifecycle.windows if client.lifecycle else ()
        if client.concurrency:
            continue
        if not windows:
            raise problem_at(
                ["clients", index, "lifecycle"],
                f"missing, but {ABSOLUTE}; give windows with trace_rate, or aggregate_rate",
            )
        for number, window in enumerate(windows):
            if window.trace_rate is None:
                raise problem_at(
                    ["clients", index, "lifecycle", "windows", number, "trace_rate"],
                    f"missing, but {ABSOLUTE}; give it, or aggregate_rate",
                )
    for index, cohort in enumerate(workload.cohorts):
        _check_absolute_cohort(cohort, index)


def _check_absolute_cohort(cohort: CohortSpec, index: int) -> None:
    why = f"not allowed where {ABSOLUTE}; give a spike with trace_rate, or aggregate_rate"
    for name in ("diurnal", "drain"):
        if getattr(cohort, name) is not None:
            raise problem_at(["cohorts", index, name], why)
    if cohort.spike is None or cohort.spike.trace_rate is None:
        raise problem_at(
            ["cohorts", index, "spike"],
            f"no trace_rate is given, but {ABSOLUTE}; give it, or aggregate_rate",
        )


def _check_classes(workload: RevisedWorkload) -> None:
    """Refuse a workload in which only some clients have a class, since BLIS counts the empty class as standard."""
    places: dict[bool, tuple[str, int]] = {}
    for name in ("clients", "cohorts"):
        for index, source in enumerate(getattr(workload, name)):
            places.setdefault(bool(source.slo_class), (name, index))
    if len(places) == 2:
        name, index = places[False]
        other, place = places[True]
        raise problem_at(
            [name, index, "slo_class"],
            f"missing, but {other}[{place}] has one; give all clients and cohorts a class, or none",
        )


def _check_sessions(workload: RevisedWorkload) -> None:
    """Refuse pools of users together with sessions, because BLIS cannot count their requests together."""
    pools = [index for index, client in enumerate(workload.clients) if client.concurrency]
    if not pools:
        return
    for name in ("clients", "cohorts"):
        sources: Sequence[RevisedClient | CohortSpec] = getattr(workload, name)
        for index, source in enumerate(sources):
            if source.reasoning is not None and source.reasoning.multi_turn is not None:
                raise problem_at(
                    [name, index, "reasoning", "multi_turn"],
                    f"not allowed beside clients[{pools[0]}].concurrency; leave one of them out",
                )


def _without_type(value: object) -> object:
    """Return None for a law without a type, which is how BLIS writes a missing law."""
    return None if value == {"type": ""} else value


OptionalLaw = Annotated[RevisedLengthLaw | None, BeforeValidator(_without_type)]
AtLeastOne = Annotated[Whole, Field(ge=1)]
Span = Annotated[Whole, Field(ge=0, lt=2**62)]  # µs, to be added to a time
MOST_MEMBERS = 100_000  # of a cohort, the reference's limit


class RevisedArrival(ArrivalSpec):
    """Law of the gaps; shape and scale (µs) of gamma and weibull, both given, replace cv and rate."""

    shape: Positive | None = None
    scale: Positive | None = None

    @property
    def is_fitted(self) -> bool:
        """Return whether shape and scale are given; they are used for gamma and weibull gaps."""
        return self.shape is not None and self.scale is not None

    @model_validator(mode="after")
    def _solvable(self) -> RevisedArrival:
        if not self.is_fitted:
            self.check_cv()
        return self


class RevisedWindow(ActiveWindow):
    """A span in which the client sends requests; any of the last four fields replaces the client's own."""

    trace_rate: NonNegative | None = None  # weight, or requests/s without an aggregate_rate
    arrival: RevisedArrival | None = None
    input_distribution: RevisedLengthLaw | None = None
    output_distribution: RevisedLengthLaw | None = None

    @property
    def has_own_laws(self) -> bool:
        """Return whether the window replaces the client's rate, arrivals or lengths."""
        laws = (self.trace_rate, self.arrival, self.input_distribution, self.output_distribution)
        return any(value is not None for value in laws)

    @model_validator(mode="after")
    def _ordered(self) -> RevisedWindow:
        if self.end_us <= self.start_us:
            raise problem_at(
                ["end_us"], f"got {self.end_us}, allowed is more than start_us = {self.start_us}"
            )
        return self


class RevisedLifecycle(LifecycleSpec):
    """The client's active spans, outside of which it is silent."""

    windows: Annotated[tuple[RevisedWindow, ...], Field(min_length=1)]


class RevisedMultiTurn(MultiTurnSpec):
    """Sessions; a later round waits for the previous answer and the think time, unless closed_loop is false."""

    max_rounds: AtLeastOne
    single_session: bool = False  # the client's first arrival begins its only session

    @field_validator("context_growth", mode="before")
    @classmethod
    def _known_growth(cls, growth: object) -> object:
        if not isinstance(growth, str) or growth in ("", "accumulate"):
            return growth
        text = f"context_growth: {shortened(growth)} is not 'accumulate', so prompts do not grow, as in BLIS"
        warnings.warn(f"{text}{closest(growth, ['accumulate'])}", ConfigWarning, stacklevel=2)
        return ""


class RevisedReasoning(ReasoningSpec):
    """The share of reasoning tokens, which has no effect, and sessions."""

    reason_ratio_distribution: OptionalLaw = None  # type: ignore[assignment]
    multi_turn: RevisedMultiTurn | None = None


class RevisedMultimodal(MultimodalSpec):
    """Token counts of the parts of a multimodal prompt."""

    text_distribution: OptionalLaw = None  # type: ignore[assignment]
    image_distribution: OptionalLaw = None  # type: ignore[assignment]
    image_count_distribution: OptionalLaw = None  # type: ignore[assignment]
    audio_distribution: OptionalLaw = None  # type: ignore[assignment]
    audio_count_distribution: OptionalLaw = None  # type: ignore[assignment]
    video_distribution: OptionalLaw = None  # type: ignore[assignment]
    video_count_distribution: OptionalLaw = None  # type: ignore[assignment]


class RevisedSource(Strict):
    """The request fields that a client sets, or a cohort for all its members."""

    id: str = ""
    tenant_id: str = ""
    slo_class: Literal["", "critical", "standard", "sheddable", "batch", "background"] = ""
    model: str = ""
    adapter: str = ""  # the LoRA adapter that all its requests name
    arrival: RevisedArrival
    input_distribution: RevisedLengthLaw
    output_distribution: RevisedLengthLaw
    prefix_group: str = ""
    prefix_length: Count = 0
    streaming: bool = False
    network: NetworkSpec | None = None
    multimodal: RevisedMultimodal | None = None
    reasoning: RevisedReasoning | None = None
    timeout: Span | None = None  # µs; 0: none; not given: 300 s for sessions, none for the rest
    slo_target_us: Span | None = None
    closed_loop: bool | None = None  # not given: true for sessions


class RevisedClient(RevisedSource, ClientSpec):  # type: ignore[misc]  # laws of its own
    """One source of requests: at a share of the rate, or a pool of `concurrency` users."""

    sessions_are_bare: ClassVar[bool] = False

    rate_fraction: NonNegative = 0.0
    concurrency: Count = 0  # users, each sending again once answered
    think_time_us: Count = 0  # of those users
    arrival: RevisedArrival = RevisedArrival(process="constant")
    lifecycle: RevisedLifecycle | None = None

    @property
    def is_closed_loop(self) -> bool:
        """Return whether each round of the client's sessions waits for the answer to the previous round."""
        return self.multi_turn is not None if self.closed_loop is None else self.closed_loop

    @property
    def has_single_session(self) -> bool:
        """Return whether the client begins only one session."""
        turns = self.reasoning.multi_turn if self.reasoning else None
        return turns is not None and turns.single_session

    @model_validator(mode="before")
    @classmethod
    def _without_process(cls, data: object) -> object:
        """Return the data without an arrival law that has no process, which is how BLIS writes pools."""
        if isinstance(data, dict) and data.get("arrival") == {"process": ""}:
            return {name: value for name, value in data.items() if name != "arrival"}
        return data

    @model_validator(mode="after")
    def _positive_lengths(self) -> RevisedClient:
        return self  # BLIS raises lengths of its laws to 1, and takes counts of 0 as they are

    @model_validator(mode="after")
    def _paced_once(self) -> RevisedClient:
        check_pace(self)
        return self


class DiurnalSpec(Strict):
    """A day in which each hour's active part follows a cosine."""

    peak_hour: Annotated[Whole, Field(ge=0, le=23)]
    peak_to_trough_ratio: Annotated[NonNegative, Field(ge=1)]


class SpikeSpec(Strict):
    """A span outside of which the cohort is silent."""

    start_time_us: Count
    duration_us: AtLeastOne
    trace_rate: Positive | None = None  # of the whole cohort


class DrainSpec(Strict):
    """Full activity up to a time, then ten ever shorter spans."""

    start_time_us: Count
    ramp_duration_us: AtLeastOne


class CohortSpec(RevisedSource):
    """Clients that are alike; each client's id and windows are derived from the cohort's."""

    population: Annotated[Whole, Field(ge=1, le=MOST_MEMBERS)]
    prefix_sharing: Literal["", "shared", "per_member"] = ""
    rate_fraction: Positive  # of all members together
    diurnal: DiurnalSpec | None = None
    spike: SpikeSpec | None = None
    drain: DrainSpec | None = None

    @model_validator(mode="after")
    def _has_group(self) -> CohortSpec:
        if self.prefix_sharing == "per_member" and not self.prefix_group:
            raise problem_at(
                ["prefix_sharing"], "got 'per_member', which needs a prefix_group; give one"
            )
        return self


class RevisedWorkload(WorkloadSpec):
    """A whole workload: clients and cohorts, or one of the compact forms that expand into clients."""

    revision: ClassVar[str] = REVISED
    law_types: ClassVar[tuple[str, ...]] = REVISED_LAW_TYPES

    aggregate_rate: NonNegative = 0.0  # requests/s; 0: windows have rates of their own
    clients: tuple[RevisedClient, ...] = ()
    cohorts: tuple[CohortSpec, ...] = ()
    servegen_data: RevisedServeGen | None = None  # type: ignore[assignment]
    adapters: AdapterPopularity | None = None
    goodput_slo_targets: dict[str, ClassTargets] = Field(default_factory=dict)

    @property
    def served_data(self) -> RevisedServeGen | None:
        """Return the ServeGen data from which requests come; None without them, or beside cohorts."""
        return None if self.cohorts else self.servegen_data

    @property
    def has_fixed_rates(self) -> bool:
        """Return whether stages or data set the rates, which aggregate_rate does not change."""
        return self.inference_perf is not None or self.served_data is not None

    def content(self) -> dict[str, Any]:
        """Return everything on which the requests depend besides the seed, as plain data; of ServeGen data a digest."""
        files = {} if self.served_data is None else {"servegen_files": self.served_data.digest}
        return super().content() | files

    @property
    def slo_classes(self) -> tuple[str, ...]:
        """Return the SLO classes of the clients, `default` for none, in order of their first use."""
        made: tuple[str, ...] = ("standard",) if self.inference_perf is not None else ()
        made = made if self.served_data is None else self.served_data.slo_classes
        given = (source.slo_class or "default" for source in (*self.clients, *self.cohorts))
        return tuple(dict.fromkeys((*made, *given)))

    @property
    def waits(self) -> bool:
        """Return whether users or sessions wait for answers, or requests may be dropped at a deadline."""
        if self.inference_perf is not None or (self.served_data and self.served_data.has_reasoning):
            return True
        return any(
            sender.timeout or sender.reasoning is not None or getattr(sender, "concurrency", 0)
            for sender in (*self.clients, *self.cohorts)
        )

    @property
    def has_rate(self) -> bool:
        """Return whether some requests arrive at a rate, unlike those of users who wait for answers."""
        return not self.clients or not all(client.concurrency for client in self.clients)

    @model_validator(mode="after")
    def _has_source(self) -> RevisedWorkload:
        check_sources(self)
        return self
