"""Whether the best router is another one where tokens are drafted: mean E2E by router, load and drafts.

python examples/drafts/routers.py
"""

from __future__ import annotations

import numpy as np
from break_even import cluster

from blis_jax import load_builtin, override, run_grid
from blis_jax.backend import prepare_backend
from blis_jax.metrics.scalars import evaluate

ROUTERS = {
    "round-robin": {"routing_policy": "round-robin"},
    "least-loaded": {"routing_policy": "least-loaded"},
    "prefix 1, load 1": {"routing_scorers": "prefix-affinity:1,load-balance:1"},
    "prefix 3, load 1": {"routing_scorers": "prefix-affinity:3,load-balance:1"},
}
RATES, DRAFTS, SECONDS, SEEDS = (20, 60, 100), ((0, 0.0), (3, 0.5), (3, 0.7)), 10, range(5)
INSTANCES = 4
SPEC = load_builtin("mixed")


def main() -> None:
    """Print mean E2E with its standard error, and the paired difference to the best router of the line."""
    prepare_backend()
    lines = [(rate, num, acceptance) for rate in RATES for num, acceptance in DRAFTS]
    configs, specs = [], []
    for rate, num, acceptance in lines:
        for router in ROUTERS.values():
            policy = {"routing_policy": "weighted"} | router
            configs.append(cluster(num, acceptance).replace(num_instances=INSTANCES, **policy))
            changes = {"aggregate_rate": float(rate), "num_requests": SECONDS * rate}
            specs.append(override(SPEC, **changes))
    found = run_grid(configs, specs, SEEDS, lambda record: evaluate(record, ["e2e_mean_ms"]))
    e2e = np.array([[one["e2e_mean_ms"] for one in row] for row in found.rows])
    e2e = e2e.reshape(len(lines), len(ROUTERS), -1)
    print(f"| req/s | K | acceptance | {' | '.join(ROUTERS)} |")
    print("|---" * (len(ROUTERS) + 3) + "|")
    for (rate, num, acceptance), of_line in zip(lines, e2e, strict=True):
        best = of_line[of_line.mean(axis=1).argmin()]
        cells = []
        for times in of_line:
            more = 100 * (times / best - 1)
            error = more.std(ddof=1) / np.sqrt(len(more))
            beside = f" (+{more.mean():.1f} ± {error:.1f} %)" if error else " (best)"
            cells.append(f"{times.mean():.0f} ms{beside}")
        print(f"| {rate} | {num} | {acceptance:g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
