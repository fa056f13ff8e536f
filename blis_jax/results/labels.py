"""What a run's requests are called, and what a workload's clients add to their requests in a results file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.workload.network import client_e2e_us, client_ttft_us

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.results.records import RunRecord
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable, WorkloadNames


@dataclass(frozen=True)
class Labels:
    """Texts of each request, empty where it has none."""

    request_id: Sequence[str]
    tenant: Sequence[str]
    model: Sequence[str]
    session: Sequence[str]
    round_index: Sequence[int]
    # further fields of a results file, by request
    latencies: dict[int, dict[str, float]] = field(default_factory=dict)


def labels_of(
    record: RunRecord,
    table: RequestTable,
    names: WorkloadNames,
    spec: WorkloadSpec | None = None,
    request_ids: Sequence[str] | None = None,
) -> Labels:
    """The labels of a run's requests.

    Args:
        record: the run.
        table: its requests, numpy arrays `[request]`.
        names: the texts behind the table's codes.
        spec: the workload that the requests were drawn from, if they were.
        request_ids: their ids; request_<n> if None.
    """
    num_requests = len(record.requests.status)
    if request_ids is None:
        numbers = names.request_numbers
        request_ids = [
            f"request_{n}" for n in (range(num_requests) if numbers is None else numbers)
        ]
    model = [""] * num_requests if names.models is None else names.models.tolist()
    latencies: dict[int, dict[str, float]] = {}
    if spec is not None:
        from blis_jax.workload.revised.expansion import expanded

        clients = expanded(spec).clients
        model = [clients[client].model for client in np.asarray(table.client).tolist()]
        latencies = _client_latencies(clients, np.asarray(table.client), record)
    return Labels(
        request_id=request_ids,
        tenant=_named(table.tenant, names.tenant_names, ""),
        model=model,
        session=_named(table.session, names.session_names, "session_"),
        round_index=np.asarray(table.round_index).tolist(),
        latencies=latencies,
    )


def _named(codes: Any, names: Sequence[str], otherwise: str) -> list[str]:
    """The texts behind codes, empty for negative ones; `otherwise` and the code where there are no texts."""
    if not names:
        names = [
            f"{otherwise}{code}" if otherwise else ""
            for code in range(int(np.max(codes, initial=-1)) + 1)
        ]
    return [str(names[code]) if code >= 0 else "" for code in np.asarray(codes).tolist()]


def _client_latencies(
    clients: Sequence[Any], client: Int[np.ndarray, " request"], record: RunRecord
) -> dict[int, dict[str, float]]:
    """Latencies at the client by request, ours, in ms, where a client has a network; 0 for what did not happen."""
    requests = record.requests
    found: dict[int, dict[str, float]] = {}
    for index, one in enumerate(clients):
        if one.network is None:
            continue
        rows = np.flatnonzero(client == index)
        ttft_us, e2e_us = requests.ttft_us[rows], requests.e2e_us[rows]
        sizes = requests.input_len[rows], requests.output_len[rows]
        seen_ttft = client_ttft_us(ttft_us, sizes[0], one.network) / 1e3
        seen_e2e = client_e2e_us(e2e_us, *sizes, one.network) / 1e3
        ttft_ms = np.where(ttft_us >= 0, seen_ttft, 0.0).tolist()
        e2e_ms = np.where(e2e_us >= 0, seen_e2e, 0.0).tolist()
        for row, ttft, e2e in zip(rows.tolist(), ttft_ms, e2e_ms, strict=True):
            found[row] = {"client_ttft_ms": ttft, "client_e2e_ms": e2e}
    return found
