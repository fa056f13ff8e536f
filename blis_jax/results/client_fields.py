"""What a workload's clients add to their requests in a results file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.workload.network import client_e2e_us, client_ttft_us

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.results.records import RunRecord
    from blis_jax.workload.spec import WorkloadSpec


def client_fields(
    spec: WorkloadSpec, client: Int[np.ndarray, " request"], record: RunRecord
) -> dict[int, dict[str, Any]]:
    """Fields by request: the model tag, as the reference writes it, and latencies at the client.

    Latencies are ours, in ms, where a client has a network; 0 for what did not happen.
    """
    from blis_jax.workload.revised.expansion import expanded

    requests = record.requests
    fields: dict[int, dict[str, Any]] = {}
    for index, one in enumerate(expanded(spec).clients):
        rows = np.flatnonzero(client == index)
        columns: dict[str, Any] = {"model": [one.model] * len(rows)} if one.model else {}
        if one.network is not None:
            ttft_us, e2e_us = requests.ttft_us[rows], requests.e2e_us[rows]
            sizes = requests.input_len[rows], requests.output_len[rows]
            seen_ttft = client_ttft_us(ttft_us, sizes[0], one.network) / 1e3
            seen_e2e = client_e2e_us(e2e_us, *sizes, one.network) / 1e3
            columns["client_ttft_ms"] = np.where(ttft_us >= 0, seen_ttft, 0.0).tolist()
            columns["client_e2e_ms"] = np.where(e2e_us >= 0, seen_e2e, 0.0).tolist()
        for place, row in enumerate(rows.tolist()):
            fields[row] = {name: values[place] for name, values in columns.items()}
    return fields
