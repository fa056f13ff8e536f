"""`python -m benchmarks.coverage.verdicts.maps`: how often a robustness map recommends a strategy that it should not.

Each cell of a made-up map is a case of its own. The objectives of two strategies differ by 1 in standard deviation over
the seeds, whatever the seeds do to all alike. One strategy leads by `lead` standard deviations; all others are equal.
`margin` is how far the leader keeps the constraint (95 % of the first strategy's tokens/s) in truth, in standard errors
on 20 seeds; below 0 it breaks it. A recommendation is wrong if it names a strategy that breaks the constraint in truth,
or one that is not better than all others that keep it. Columns: recommendations that are right, and that are wrong, of
all cells in %, on 20 seeds; then the same with `--decide`, up to 153 seeds, and the mean number of seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import xarray as xr

from benchmarks.coverage.verdicts.families import exponential, normal
from benchmarks.coverage.verdicts.sequential import looks
from benchmarks.coverage.worlds import number_option
from blis_jax.core.outcome import Outcome
from papers.pages import print_rows
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.verdict import NONE, recommend

NUM_SAMPLES, NUM_SEEDS, MOST_SEEDS = 500, 20, 153
LEVEL, COMMON = 100.0, 5.0  # of objective and tokens/s; what the seeds do to all strategies
SHARE = 0.95  # of the first strategy's tokens/s
TOKENS_ERROR = np.sqrt((1 + SHARE**2) / NUM_SEEDS)  # of how far the constraint is kept
KEPT = 50.0  # standard errors by which the others keep it


class World(NamedTuple):
    """The truth in every cell."""

    noise: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
    num_strategies: int
    lead: float
    margin: float = KEPT

    @property
    def right(self) -> set[str]:
        """Return the strategies that a recommendation may name."""
        if self.margin >= 0:
            return {"leader"} if self.lead > 0 else set()
        return {"first"} if self.num_strategies == 2 else set()


WORLDS = {
    "no strategy is better": [World(normal, count, 0.0) for count in (2, 4)],
    "no strategy is better, skewed": [World(exponential, count, 0.0) for count in (2, 4)],
    "one leads by 0.25": [World(normal, count, 0.25) for count in (2, 4)],
    "one leads by 1": [World(normal, count, 1.0) for count in (2, 4)],
    "one leads by 1, skewed": [World(exponential, count, 1.0) for count in (2, 4)],
    "the leader breaks its limit by 3": [World(normal, 2, 1.0, -3.0)],
    "the leader breaks its limit by 1": [World(normal, 2, 1.0, -1.0)],
    "the leader is at its limit": [World(normal, 2, 1.0, 0.0)],
    "the leader keeps its limit by 1": [World(normal, 2, 1.0, 1.0)],
}


def made(world: World, num_cells: int, num_seeds: int, rng: np.random.Generator) -> xr.Dataset:
    """Make a map whose cells have the world's truth, with all that verdicts read of a map."""
    names = ["first", *(f"other{n}" for n in range(2, world.num_strategies)), "leader"]
    shape = (num_cells, num_seeds)
    common = COMMON * rng.normal(size=shape)
    objective, tokens = [], []
    for name in names:
        is_leader = name == "leader"
        objective.append(
            LEVEL + common + world.noise(rng, shape) / np.sqrt(2) - world.lead * is_leader
        )
        mean = SHARE * LEVEL + world.margin * TOKENS_ERROR if is_leader else LEVEL
        tokens.append(mean + rng.normal(size=shape))
    dims = ("cell", "strategy", "seed")
    latency = np.stack(objective, axis=1)[..., None]
    outcome = np.full(latency.shape[:-1], int(Outcome.COMPLETED), np.int8)
    return xr.Dataset(
        {
            "ttft_p99_ms": ((*dims, "slo_class"), latency),
            "tokens_per_sec": (dims, np.stack(tokens, axis=1)),
            "outcome": (dims, outcome),
        },
        coords={"strategy": names, "seed": range(num_seeds), "slo_class": ["critical"]},
    )


def recommended(dataset: xr.Dataset, num_seeds: int, *, decides: bool) -> np.ndarray:
    """Return the strategy that the map recommends in each cell, from the first `num_seeds` seeds."""
    some = dataset.isel(seed=slice(0, num_seeds))
    some.attrs["stopping"] = json.dumps({"decides": decides})
    constraint = f"tokens_per_sec>={100 * SHARE:g}%"
    labels: np.ndarray = recommend(some, "ttft_p99_ms[critical]", [constraint])[
        "recommended"
    ].values
    return labels


def decided(dataset: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return each cell's recommendation at the first look that has one, and the number of seeds at that look."""
    most = dataset.sizes["seed"]
    labels = np.full(dataset.sizes["cell"], UNDECIDED, object)
    count = np.full(dataset.sizes["cell"], most)
    for num_seeds in [look for look in looks() if look <= most]:
        left = np.flatnonzero(labels == UNDECIDED)
        if not len(left):
            break
        now = recommended(dataset.isel(cell=left), num_seeds, decides=True)
        labels[left] = now
        count[left[now != UNDECIDED]] = num_seeds
    return labels, count


def row(world: World, num_cells: int) -> str:
    """Return the right and the wrong recommendations in % of the cells, on fixed seeds and with `--decide`, and the
    mean number of seeds.
    """
    dataset = made(world, num_cells, MOST_SEEDS, np.random.default_rng(NUM_SEEDS))
    fixed = recommended(dataset, NUM_SEEDS, decides=False)
    late, count = decided(dataset)
    cells = []
    for names in (fixed, late):
        is_right = np.isin(names, list(world.right))
        is_wrong = ~is_right & (names != UNDECIDED) & (names != NONE)
        cells += [f"{100 * share.mean():.1f}" for share in (is_right, is_wrong)]
    return f"{' | '.join(cells)} | {count.mean():.0f}"


def main() -> None:
    """Print the table."""
    num_cells = number_option(__doc__, "samples", NUM_SAMPLES)
    heads = (f"right, {NUM_SEEDS} seeds", "wrong", "right, --decide", "wrong", "seeds")
    print_rows(("cells", "strategies", *heads), (
        (name, world.num_strategies, row(world, num_cells))
        for name, worlds in WORLDS.items()
        for world in worlds
    ))  # fmt: skip


if __name__ == "__main__":
    main()
