"""What a client sees beyond the server's steps, fitted to measured runs that were simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from blis_jax.predict.figures import ClientView, chosen_of, figure, part_of, seen
from blis_jax.predict.simulation import SimulatedRequests
from papers.real_servers.vllm import VllmRun

HUBER = 0.05  # relative residuals beyond count by their size, not by its square
FIRST_TOKEN_MS, FIRST_TOKEN_STEPS = (
    (3.0, 5.0),
    (1.0, 1.0),
)  # mean and standard deviation before any run
SPREAD_PRIOR = 4  # runs without a spread that the prior is worth
SPREADS = ("ttft_p90", "ttft_p99", "e2e_p90", "e2e_p99")


def client_of(runs: Sequence[VllmRun], simulated: Mapping[str, SimulatedRequests]) -> ClientView:
    """The client that makes simulated figures of these runs the most like the measured ones."""
    first_ms, first_steps = _first_token(runs, simulated)
    client = ClientView(first_ms, first_steps, _token_share(runs))
    ratios: dict[str, list[float]] = {}
    for run in runs:
        requests = seen(simulated[run.name], client)
        for (name, stage), cell in run.cells.items():
            part = part_of(run.scene, stage)
            is_repeated = stage is not None and len({one for _, one in run.cells}) == 2  # one stage
            if name in SPREADS and not is_repeated:
                value = figure(name, requests, chosen_of(run.scene, requests, stage))
                ratios.setdefault(f"{name}/{part}", []).append(np.log(run.measured[cell] / value))
    spread = {
        name: float(np.exp(np.median(logs) * len(logs) / (len(logs) + SPREAD_PRIOR)))
        for name, logs in sorted(ratios.items())
    }
    return ClientView(first_ms, first_steps, client.token_share, spread=spread)


def _first_token(
    runs: Sequence[VllmRun], simulated: Mapping[str, SimulatedRequests]
) -> tuple[float, float]:
    """Constant in ms and number of steps, by least squares of relative residuals, with large ones weighed down."""
    rows, wanted = [], []
    for run in runs:
        requests = simulated[run.name]
        for (name, stage), cell in run.cells.items():
            if name == "ttft_mean":
                chosen = chosen_of(run.scene, requests, stage)
                measured = run.measured[cell]
                rows.append([1.0 / measured, figure("itl_mean", requests, chosen) / measured])
                wanted.append(1.0 - figure(name, requests, chosen) / measured)
    matrix, values = np.array(rows), np.array(wanted)
    mean, sd = np.transpose([FIRST_TOKEN_MS, FIRST_TOKEN_STEPS])
    found = np.asarray(mean)
    for _ in range(20):
        size = np.abs(values - matrix @ found)
        weight = np.sqrt(np.minimum(1.0, HUBER / np.maximum(size, 1e-9))) / HUBER
        stacked = np.concatenate([matrix * weight[:, None], np.diag(1 / sd)])
        found = np.linalg.lstsq(stacked, np.concatenate([values * weight, mean / sd]), rcond=None)[
            0
        ]
    return float(found[0]), float(found[1])


def _token_share(runs: Sequence[VllmRun]) -> float:
    """Share of the tokens asked for that came, by measured E2E, TTFT and ITL."""
    shares = []
    for run in runs:
        e2e, ttft, itl = (
            run.measured[run.cells[name, None]] for name in ("e2e_mean", "ttft_mean", "itl_mean")
        )
        shares.append(((e2e - ttft) / itl + 1) / run.scene.load.output)
    return float(np.median(shares))
