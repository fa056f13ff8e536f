"""What a seed's requests are like before they are served: numbers that explain most of what seeds do.

Beside counts and tokens these are the waits in queues that are far simpler than a cluster: one server
that works off prompt tokens, or requests, at a fixed rate. Whoever meets a burst waits there too.
"""

from __future__ import annotations

import numpy as np

from blis_jax.core.types import CRITICAL, SHEDDABLE, STANDARD
from blis_jax.workload.table import NEVER_US, RequestTable

CLASSES = {"critical": CRITICAL, "standard": STANDARD, "sheddable": SHEDDABLE}
TOKEN_MS = (8, 10, 12, 16)  # from one output token to the next, by how busy an instance is
WINDOWS_MS = (50, 150)
SERVERS = (0.75, 1.0, 1.35, 2.0)  # a server's rate, in rates of the workload
QUANTILES = (50, 90, 99)
COVARIATES = (
    "span_ms", "longest_output",
    *(f"{what}_at_{token}ms" for token in TOKEN_MS for what in ("last_end", "tokens_per_ms")),
    *(f"most_in_{window}ms" for window in WINDOWS_MS),
    *(f"{what}[{name}]" for name in CLASSES for what in ("requests", "prompt_tokens", "output_tokens")),
    *(f"output_p{q}[{name}]" for name in ("all", *CLASSES) for q in QUANTILES),
    *(f"wait_at_{share:g}_{what}[{name}]" for share in SERVERS for name in ("all", *CLASSES)
      for what in ("mean", *(f"p{q}" for q in QUANTILES))),
)  # fmt: skip


def covariates(table: RequestTable, rate_rps: float) -> np.ndarray:
    """The numbers of one run's requests, `[covariate]`, in the order of COVARIATES.

    `rate_rps` is the rate of the workload that a surrogate was fitted for, which the servers are sized by.
    """
    is_request = np.asarray(table.arrival_us) != NEVER_US
    arrival, prompt, output, slo_class = (
        np.asarray(column)[is_request]
        for column in (table.arrival_us, table.input_len, table.output_len, table.slo_class)
    )
    arrival = arrival / 1000.0
    found = [arrival.max(), output.max()]
    for token in TOKEN_MS:
        last_end = (arrival + token * output).max()
        found += [last_end, output.sum() / last_end]
    places = np.arange(len(arrival))
    for window in WINDOWS_MS:
        found.append((np.searchsorted(arrival, arrival + window) - places).max())
    members = {name: slo_class == code for name, code in CLASSES.items()}
    groups = (np.ones(len(output), bool), *members.values())
    for chosen in members.values():
        found += [chosen.sum(), prompt[chosen].sum(), output[chosen].sum()]
    for chosen in groups:
        found += _quantiles(output[chosen])
    work = prompt / max(float(prompt.mean()), 1.0)
    for share in SERVERS:
        wait = waits(arrival, work * (1000.0 / (share * rate_rps)))
        for chosen in groups:
            here = wait[chosen]
            found += [float(here.mean()) if len(here) else 0.0, *_quantiles(here)]
    return np.array(found, float)


def waits(arrival: np.ndarray, service: np.ndarray) -> np.ndarray:
    """How long each of the requests waits for a single server; Lindley's recursion, all at once."""
    ahead = np.concatenate([[0.0], np.cumsum(service)[:-1]]) - arrival
    return np.asarray(ahead - np.minimum.accumulate(ahead))


def _quantiles(values: np.ndarray) -> list[float]:
    return np.percentile(values, QUANTILES).tolist() if len(values) else [0.0] * len(QUANTILES)
