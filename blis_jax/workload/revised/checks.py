"""What keys of a revised workload file must not say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax.workload.inference_perf import check_clients
from blis_jax.workload.lengths.laws import problem_at

if TYPE_CHECKING:
    from blis_jax.workload.revised.spec import (
        CohortSpec,
        RevisedClient,
        RevisedWorkload,
    )

ABSOLUTE = "without an aggregate_rate every client needs rates of its own"


def check_pace(client: RevisedClient) -> None:
    """A share of the rate, or a number of concurrent users."""
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
    """One source of requests, and all that its rates and classes need."""
    sources = ("clients", "servegen_data", "inference_perf")
    given = [name for name in sources if getattr(workload, name)]
    if len(given) > 1:
        raise problem_at(
            [given[1]],
            f"given beside {given[0]}, allowed is one of {', '.join(sources)}; leave one out",
        )
    if not given and not workload.cohorts:
        raise problem_at(["clients"], "no client is given, allowed is one or more, or cohorts")
    if not workload.aggregate_rate and "inference_perf" not in given:
        _check_absolute_rates(workload)
    if workload.inference_perf is not None:
        check_clients(workload.inference_perf)
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
    for name in ("diurnal", "drain"):
        if getattr(cohort, name) is not None:
            raise problem_at(
                ["cohorts", index, name],
                f"not allowed where {ABSOLUTE}; give a spike with trace_rate, or aggregate_rate",
            )
    if cohort.spike is None or cohort.spike.trace_rate is None:
        raise problem_at(
            ["cohorts", index, "spike"],
            f"no trace_rate is given, but {ABSOLUTE}; give it, or aggregate_rate",
        )


def _check_classes(workload: RevisedWorkload) -> None:
    """All clients have a class or none has: the empty class counts as standard in BLIS's figures."""
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
    """Pools of users and sessions do not mix: BLIS cannot count their requests together."""
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
