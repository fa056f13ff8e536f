"""Expand a workload into clients, in the order in which BLIS draws them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.files.strict_yaml import sentence
from blis_jax.workload.inference_perf import Pace, revised_clients
from blis_jax.workload.length_laws import REVISED_LAW_TYPES
from blis_jax.workload.revised_spec import (
    CohortSpec,
    DiurnalSpec,
    DrainSpec,
    RevisedClient,
    RevisedLifecycle,
    RevisedSource,
    RevisedWindow,
    RevisedWorkload,
    SpikeSpec,
)
from blis_jax.workload.servegen.keys import RevisedServeGen
from blis_jax.workload.spec import ClientSpec, WorkloadSpec
from blis_jax.workload.spec_parts import AdapterPopularity

HOURS = 24
HOUR_US = 3_600_000_000
DRAIN_PARTS = 10
LATEST_US = 2**63 - DRAIN_PARTS  # a span of a drain is 1 us at least


@dataclass(frozen=True)
class Expansion:
    """The clients of a workload, and the rate that they share."""

    clients: tuple[ClientSpec, ...]
    paces: tuple[Pace | None, ...]  # one per client; None: its arrival law's pace
    aggregate_rate: float  # requests/s


def expanded(spec: WorkloadSpec, seed: int | None = None) -> Expansion:
    """Return the clients into which a workload expands.

    Args:
        spec: the workload.
        seed: of the cohorts that August makes of ServeGen data; the specification's if None.

    Raises:
        ConfigError: a client or cohort has impossible values, or ServeGen data cannot be read.
    """
    if not isinstance(spec, RevisedWorkload):
        assert spec.clients and spec.aggregate_rate is not None
        return Expansion(spec.clients, (None,) * len(spec.clients), spec.aggregate_rate)
    rate = spec.aggregate_rate
    clients: list[ClientSpec] = list(spec.clients)
    paces: list[Pace | None] = [None] * len(clients)
    if spec.inference_perf is not None:
        rate, users = revised_clients(spec.inference_perf)
        clients = [_client("inference_perf", user.document) for user in users]
        paces = [user.pace for user in users]
    placed = [(cohort, f"cohorts[{index}]") for index, cohort in enumerate(spec.cohorts)]
    if spec.served_data is not None:
        rate, placed = 0.0, _cohorts_of(spec.served_data, spec.seed if seed is None else seed)
    members = [member for cohort, place in placed for member in _members(cohort, place)]
    made = Expansion((*clients, *members), (*paces, *[None] * len(members)), rate)
    return made if spec.adapters is None else _by_adapter(made, spec.adapters)


def _by_adapter(made: Expansion, adapters: AdapterPopularity) -> Expansion:
    """Return the clients, each one without an adapter split into one client per adapter, at the adapter's rate."""
    clients: list[ClientSpec] = []
    paces: list[Pace | None] = []
    for client, pace in zip(made.clients, made.paces, strict=True):
        assert isinstance(client, RevisedClient)
        parts = [client] if client.adapter else list(_spread(client, adapters))
        clients += parts
        paces += [pace] * len(parts)
    return Expansion(tuple(clients), tuple(paces), made.aggregate_rate)


def _spread(client: RevisedClient, adapters: AdapterPopularity) -> Iterator[RevisedClient]:
    document = client.model_dump(exclude_unset=True)
    for name, share in zip(adapters.names, adapters.shares, strict=True):
        changes: dict[str, Any] = {"id": f"{client.id}-{name}", "adapter": name}
        changes["rate_fraction"] = client.rate_fraction * share
        if client.lifecycle is not None:
            changes["lifecycle"] = {
                "windows": [
                    window.model_dump(exclude_unset=True)
                    | (
                        {}
                        if window.trace_rate is None
                        else {"trace_rate": window.trace_rate * share}
                    )
                    for window in client.lifecycle.windows
                ]
            }
        yield _client("adapters", document | changes)


def refuse_adapters(spec: WorkloadSpec) -> None:
    """Refuse a workload whose requests name LoRA adapters.

    Raises:
        UnsupportedError: a client or cohort names an adapter.
    """
    why = "LoRA adapters belong to a cluster; draw the requests with `drawn`, and give them to a run with `placed`"
    if getattr(spec, "adapters", None) is not None:
        raise UnsupportedError(f"adapters: {why}")
    for name in ("clients", "cohorts"):
        for index, source in enumerate(getattr(spec, name, ())):
            if getattr(source, "adapter", ""):
                raise UnsupportedError(f"{name}[{index}].adapter: {why}")


def _client(source: str, document: Mapping[str, Any]) -> RevisedClient:
    """Return a client built from `document`; errors name `source`, from which it was expanded."""
    try:
        return RevisedClient.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error, REVISED_LAW_TYPES)}") from None


def _cohorts_of(data: RevisedServeGen, seed: int) -> list[tuple[CohortSpec, str]]:
    """Return the cohorts of ServeGen data, and how errors name them."""
    cohorts = []
    for document in data.cohorts(seed).document["cohorts"]:
        place = f"servegen_data: cohort {document['id']}"
        try:
            cohorts.append((CohortSpec.model_validate(document), place))
        except ValidationError as error:
            raise ConfigError(f"{place}: {sentence(error, REVISED_LAW_TYPES)}") from None
    return cohorts


def _members(cohort: CohortSpec, place: str) -> Iterator[RevisedClient]:
    """Yield a cohort's clients, which differ in their ids and, if requested, in their prefixes."""
    shared = {name: getattr(cohort, name) for name in RevisedSource.model_fields}
    windows = _windows(cohort, place)
    shared["lifecycle"] = RevisedLifecycle(windows=windows) if windows else None
    shared["rate_fraction"] = cohort.rate_fraction / cohort.population
    for member in range(cohort.population):
        names = {"id": f"{cohort.id}-{member}"}
        if cohort.prefix_sharing == "per_member":
            names["prefix_group"] = f"{cohort.prefix_group}-{member}"
        yield _client(place, shared | names)


def _windows(cohort: CohortSpec, place: str) -> tuple[RevisedWindow, ...]:
    """Return a cohort's windows of the day, the spike and the drain, in this order."""
    for name, span in (("spike", "duration_us"), ("drain", "ramp_duration_us")):
        part = getattr(cohort, name)
        if part is not None and part.start_time_us + getattr(part, span) >= LATEST_US:
            raise ConfigError(
                f"{place}.{name}: start_time_us and {span} add up to 2^63 or more; lower one of them"
            )
    windows: list[RevisedWindow] = []
    if cohort.diurnal is not None:
        windows += _diurnal_windows(cohort.diurnal)
    if cohort.spike is not None:
        windows.append(_spike_window(cohort.spike, cohort.population))
    if cohort.drain is not None:
        windows += _drain_windows(cohort.drain)
    return tuple(windows)


def _diurnal_windows(diurnal: DiurnalSpec) -> Iterator[RevisedWindow]:
    """Yield the active part of every hour: the whole hour at the peak, and the least part twelve hours from it."""
    least = 1.0 / diurnal.peak_to_trough_ratio
    for hour in range(HOURS):
        angle = 2.0 * math.pi * float(hour - diurnal.peak_hour) / float(HOURS)
        part = (1.0 + math.cos(angle)) / 2.0 * (1.0 - least) + least
        active_us = max(min(int(float(HOUR_US) * part), HOUR_US), 1)
        yield RevisedWindow(start_us=hour * HOUR_US, end_us=hour * HOUR_US + active_us)


def _spike_window(spike: SpikeSpec, population: int) -> RevisedWindow:
    rate = None if spike.trace_rate is None else spike.trace_rate / population
    end_us = spike.start_time_us + spike.duration_us
    return RevisedWindow(start_us=spike.start_time_us, end_us=end_us, trace_rate=rate)


def _drain_windows(drain: DrainSpec) -> Iterator[RevisedWindow]:
    """Yield the window before the drain, then ten equally spaced windows of falling length."""
    if drain.start_time_us > 0:
        yield RevisedWindow(start_us=0, end_us=drain.start_time_us)
    span_us = max(drain.ramp_duration_us // DRAIN_PARTS, 1)
    for part in range(DRAIN_PARTS):
        fraction = float(DRAIN_PARTS - part) / float(DRAIN_PARTS)
        start_us = drain.start_time_us + part * span_us
        active_us = max(int(float(span_us) * fraction), 1)
        yield RevisedWindow(start_us=start_us, end_us=start_us + active_us)
