"""From simulated requests to the figures that a server reports, with what a client sees beyond the server's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from papers.real_servers.predict.scene import AskedCell, Scene, StagedLoad
from papers.real_servers.predict.simulation import SimulatedRequests

if TYPE_CHECKING:
    from jaxtyping import Bool

PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0}


@dataclass(frozen=True)
class ClientView:
    """The delays and factors of a client beside the steps of the server; the default adds nothing."""

    first_token_ms: float = 0.0  # once before the first token
    first_token_steps: float = 0.0  # likewise, in mean times between tokens of the request
    token_share: float = 1.0  # of the tokens asked for, the share that comes
    ttft_factor: float = 1.0  # of a deployment that was measured before
    itl_factor: float = 1.0
    # factor of a figure, by its name and the part of the run, as in `ttft_p99/all`
    spread: Mapping[str, float] = field(default_factory=dict)


NOTHING = ClientView()


def seen(simulated: SimulatedRequests, client: ClientView) -> SimulatedRequests:
    """Return the requests with TTFT, ITL and E2E as the client measures them, in ms."""
    itl = simulated.itl_ms * client.itl_factor
    ttft = simulated.ttft_ms + client.first_token_ms + client.first_token_steps * itl
    ttft = ttft * client.ttft_factor
    if simulated.run_s is None:
        e2e = ttft + max(simulated.output * client.token_share - 1, 0) * itl
        return replace(simulated, ttft_ms=ttft, itl_ms=itl, e2e_ms=e2e)
    # a closed loop: lengths may differ, and whoever waits longer comes less often
    gaps = (simulated.e2e_ms - simulated.ttft_ms) / np.maximum(simulated.itl_ms, 1e-9)
    e2e = ttft + gaps * itl
    slower = float(np.mean(e2e) / np.mean(simulated.e2e_ms))
    return replace(
        simulated,
        arrival_s=simulated.arrival_s * slower,
        ttft_ms=ttft,
        itl_ms=itl,
        e2e_ms=e2e,
        run_s=simulated.run_s * slower,
    )


def figure(name: str, requests: SimulatedRequests, chosen: Bool[np.ndarray, " request"]) -> float:
    """Return one figure over the chosen requests, such as `ttft_mean` and `e2e_p99`; times in ms.

    Args:
        name: `ttft`, `itl`, `tpot` or `e2e`, then `_mean`, `_p50`, `_p90` or `_p99`; or `req_s`, requests/s.
        requests: as the client sees them.
        chosen: which of them count, at least one.
    """
    if name == "req_s":
        if requests.run_s is not None:
            return len(requests.arrival_s) / requests.run_s
        ends_s = requests.arrival_s + requests.e2e_ms / 1e3
        return len(ends_s) / float(np.max(ends_s) - np.min(requests.arrival_s))
    kind, _, statistic = name.partition("_")
    of_kind = {
        "ttft": requests.ttft_ms,
        "itl": requests.itl_ms,
        "tpot": requests.itl_ms,
        "e2e": requests.e2e_ms,
    }
    values = of_kind[kind][chosen]
    if statistic == "mean":
        return float(np.mean(values))
    return float(np.percentile(values, PERCENTILES[statistic]))


def part_of(scene: Scene, stage: int | None) -> str:
    """Name the part of a run that a figure covers: `all`, the `first` stage (on a fresh server) or a `later` one."""
    is_staged = isinstance(scene.load, StagedLoad)
    if is_staged and len(scene.load.stages) == 1:  # type: ignore[union-attr]
        return "first"
    if stage is None or not is_staged:
        return "all"
    return "later" if stage else "first"


def chosen_of(
    scene: Scene, requests: SimulatedRequests, stage: int | None
) -> Bool[np.ndarray, " request"]:
    """Return which requests a figure counts: those that arrive in the stage."""
    if stage is None or not isinstance(scene.load, StagedLoad):
        return np.ones(len(requests.arrival_s), bool)
    ends = np.cumsum([each.duration_s for each in scene.load.stages])
    return np.searchsorted(ends, requests.arrival_s, "right") == stage


def predicted(
    scene: Scene, simulated: SimulatedRequests, cell: AskedCell, client: ClientView
) -> float:
    """Return the predicted value of the cell's figure."""
    requests = seen(simulated, client)
    if cell.figure == "tok_s":
        tokens = scene.load.prompt + scene.load.output
        return tokens * figure("req_s", requests, chosen_of(scene, requests, None))
    value = figure(cell.figure, requests, chosen_of(scene, requests, cell.stage))
    return value * client.spread.get(f"{cell.figure}/{part_of(scene, cell.stage)}", 1.0)
