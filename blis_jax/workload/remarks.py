"""Warn of workload settings that are valid but have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blis_jax.workload.distribution import is_gamma_too_bursty, prefix_lengths
from blis_jax.workload.length_laws import (
    BoundedExponentialLaw,
    ConstantLaw,
    ExponentialLaw,
    GaussianLaw,
)
from blis_jax.workload.reference.laws import has_own_windows
from blis_jax.workload.revised_spec import RevisedWorkload
from blis_jax.workload.servegen.clients import CLIENT
from blis_jax.workload.servegen.keys import RevisedServeGen
from blis_jax.workload.spec import ClientSpec, WorkloadSpec

MODALITIES = ("image", "audio", "video")


def ineffective_settings(spec: WorkloadSpec) -> list[str]:
    """Return one sentence for each setting without effect, however many clients have it."""
    remarks = [
        f"{key} has no effect beside clients"
        for key in ("servegen_data", "inference_perf")
        if spec.clients and getattr(spec, key) is not None
    ]
    remarks += _shares(spec)
    if isinstance(spec, RevisedWorkload):
        remarks += _revised(spec)
    lengths, clients_of = prefix_lengths(spec.clients), dict[str, list[int]]()
    for index, client in enumerate(spec.clients):
        used = lengths.get(client.prefix_group, 0)
        for parts in (
            _prefix(client, used),
            _arrivals(client),
            _sessions(client),
            _multimodal(client),
            _lengths(client),
        ):
            for remark in parts:
                clients_of.setdefault(remark, []).append(index)
    return [*remarks, *(f"{_place(at)}{remark}" for remark, at in clients_of.items())]


LEAST_OFF = 0.01  # of the sum of shares from 1


def _shares(spec: WorkloadSpec) -> Iterator[str]:
    """Yield a note on shares whose sum is not 1 although all clients always send: BLIS divides them by their sum."""
    if all(client.id.startswith(CLIENT) for client in spec.clients):
        return  # of ServeGen data, whose rates they are
    cohorts = spec.cohorts if isinstance(spec, RevisedWorkload) else ()
    has_windows = cohorts or any(client.lifecycle is not None for client in spec.clients)
    total = sum(client.rate_fraction for client in spec.clients)
    if not has_windows and spec.aggregate_rate and total and abs(total - 1) > LEAST_OFF:
        yield (
            f"rate_fraction: the clients' add up to {total:g}, not to 1; they are divided by that, so all send "
            f"{spec.aggregate_rate:g} requests/s together"
        )


MOST_LISTED = 3  # clients by their places


def _place(clients: Sequence[int]) -> str:
    """Return the position of a setting in the file: `clients[3].`, or `clients[1], [4], [5] and 7 more: `."""
    if len(clients) == 1:
        return f"clients[{clients[0]}]."
    left = len(clients) - MOST_LISTED
    listed = ", ".join(f"[{index}]" for index in clients[:MOST_LISTED])
    return f"clients{listed}{f' and {left} more' if left > 0 else ''}: "


def _revised(spec: RevisedWorkload) -> Iterator[str]:
    """Yield notes on settings that BLIS's revision of August 2026 ignores."""
    if spec.inference_perf is not None and spec.aggregate_rate:
        yield "aggregate_rate has no effect beside inference_perf: the stages have the rates"
    if spec.servegen_data is not None:
        yield from _data(spec, spec.servegen_data)
    if not has_own_windows(spec.clients):
        return
    for index, client in enumerate(spec.clients):
        if client.lifecycle is None:
            yield (
                f"clients[{index}]: sends nothing, since others have windows with rates or laws of "
                "their own; give it windows too"
            )
        elif client.prefix_group and not client.multi_turn:
            yield (
                f"clients[{index}].prefix_group has no effect: windows have rates or laws of their own"
            )


def _data(spec: RevisedWorkload, data: RevisedServeGen) -> Iterator[str]:
    if spec.served_data is None:
        yield "servegen_data has no effect beside cohorts"
        return
    if spec.aggregate_rate:
        yield "aggregate_rate has no effect beside servegen_data: the data have the rates"
    for name in data.idle:
        yield f"servegen_data.{name} has no effect: cohorts are of three half hours of the day"
    yield from data.notes()


def _prefix(client: ClientSpec, used: int) -> Iterator[str]:
    if client.prefix_length and not client.prefix_group:
        yield "prefix_length has no effect without a prefix_group"
    elif client.prefix_length not in (0, used):
        yield f"prefix_length has no effect: the group's first client sets {used} tokens"


def _arrivals(client: ClientSpec) -> Iterator[str]:
    if client.is_silent:
        has_sessions = client.reasoning is not None and client.reasoning.multi_turn is not None
        reason = "max_rounds is 0" if has_sessions else "lifecycle has no window that is ever open"
        yield f"{reason}, so this client sends nothing"
    process, cv = client.arrival.process, client.arrival.cv
    if cv is not None and process in ("poisson", "constant"):
        yield f"arrival.cv has no effect on {process} arrivals"
    if process == "gamma" and is_gamma_too_bursty(cv):
        yield "arrival.cv has no effect on gamma arrivals beyond 10: poisson arrivals are drawn"


def _sessions(client: ClientSpec) -> Iterator[str]:
    if client.multi_turn:
        bare = ("prefix_group", "lifecycle") if client.has_bare_sessions else ()
        for name in (*bare, "multimodal"):
            if getattr(client, name):
                yield f"{name} has no effect on multi-turn sessions"
    ratio = client.reasoning and client.reasoning.reason_ratio_distribution
    if ratio and not (isinstance(ratio, ConstantLaw) and ratio.params.value == 0):
        key = "reasoning.reason_ratio_distribution"
        yield f"{key} has no effect: reasoning tokens are output like any other"


def _multimodal(client: ClientSpec) -> Iterator[str]:
    if client.multimodal is None or client.multi_turn:
        return
    yield "input_distribution has no effect on multimodal prompts"
    sizes = (f"{name}_distribution" for name in MODALITIES)
    if any(getattr(client.multimodal, size) for size in sizes):
        yield "multimodal: images, sound and video count as prompt tokens; encoding them takes no time here"
    for name in MODALITIES:
        size, count = f"{name}_distribution", f"{name}_count_distribution"
        for key, other in ((size, count), (count, size)):
            if getattr(client.multimodal, key) and not getattr(client.multimodal, other):
                yield f"multimodal.{key} has no effect without {other}"


def _lengths(client: ClientSpec) -> Iterator[str]:
    for name in ("input_distribution", "output_distribution"):
        law = getattr(client, name)
        if isinstance(law, GaussianLaw) and not law.params.min <= law.params.mean <= law.params.max:
            edge = law.params.max if law.params.mean > law.params.max else law.params.min
            yield (
                f"{name}: mean {law.params.mean:g} lies outside min {law.params.min} to max {law.params.max}, so "
                f"{edge} is drawn most of the time"
            )
        is_unbounded = isinstance(law, ExponentialLaw) and not isinstance(
            law, BoundedExponentialLaw
        )
        if is_unbounded and {law.params.min, law.params.max} - {None}:
            yield f"{name}: min and max have no effect on an exponential law"
