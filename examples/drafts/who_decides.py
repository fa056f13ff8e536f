"""Who decides how many tokens are drafted: nobody, vLLM's schedule by the batch, or a policy that sees acceptance.

python examples/drafts/who_decides.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from break_even import SEEDS, SPEC, cluster

from blis_jax import ClusterConfig, override, run_grid
from blis_jax.backend import prepare_backend
from blis_jax.metrics.scalars import evaluate

RATES, ACCEPTANCES, SECONDS, MOST = (10, 30, 50), (0.5, 0.7), 10, 5
RANGES = [[1, 16, 5], [17, 32, 3], [33, 64, 1], [65, 4096, 0]]
POLICY = Path(__file__).with_name("best_rate.py")


def arms(acceptance: float) -> dict[str, ClusterConfig]:
    """Return the clusters to compare, by who decides."""
    fixed = cluster(MOST, acceptance)
    drafts = fixed.speculative_config.plain() | {"num_speculative_tokens_per_batch_size": RANGES}
    return {
        "no drafts": cluster(0, 0.0),
        f"K = {MOST}": fixed,
        "by the batch": fixed.replace(speculative_config=drafts),
        "`best_rate`": fixed.replace(draft_policy=f"{POLICY}:best_rate"),
    }


def main() -> None:
    """Print mean TPOT, and of each arm how much it is longer than with the policy, paired by seed."""
    prepare_backend()
    lines = [(acceptance, rate) for acceptance in ACCEPTANCES for rate in RATES]
    configs = [config for acceptance, _ in lines for config in arms(acceptance).values()]
    names = list(arms(ACCEPTANCES[0]))
    specs = [
        override(SPEC, aggregate_rate=float(rate), num_requests=SECONDS * rate)
        for _, rate in lines
        for _ in names
    ]
    found = run_grid(configs, specs, SEEDS, lambda record: evaluate(record, ["tpot_mean_ms"]))
    tpot = np.array([[one["tpot_mean_ms"] for one in row] for row in found.rows])
    print(f"| acceptance | req/s | {' | '.join(names)} |")
    print("|---" * (len(names) + 2) + "|")
    for (acceptance, rate), of_line in zip(
        lines, tpot.reshape(len(lines), len(names), -1), strict=True
    ):
        cells = []
        for times in of_line:
            more = 100 * (times / of_line[-1] - 1)
            error = more.std(ddof=1) / np.sqrt(len(more))
            beside = f" ({more.mean():+.0f} ± {error:.0f} %)" if more.any() else ""
            cells.append(f"{times.mean():.2f} ms{beside}")
        print(f"| {acceptance:g} | {rate} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
