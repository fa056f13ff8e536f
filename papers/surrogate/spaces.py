"""The spaces that surrogates are fitted to, and how much of each is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BASELINE, OWN_SEEDS = "iter00_baseline", 32
FIRST_COMMON_SEED = 2_000_000  # of the sets that all of some points share; in no other dataset
OF_SEEDS = ("any_seeds", "common_seeds", "levels")  # of a space with points on seeds of their own
MOST_WANTED = "ttft_p99_ms[critical]"


@dataclass(frozen=True)
class PaperSpace:
    """A strategy's space with the sizes of its dataset and of its ensemble."""

    title: str
    strategy: str
    points: int
    calibration: int
    test: int
    seeds: int
    train_seeds: int
    other_points: int = 0
    steps: int = 8000
    members: int = 5
    width: int = 64
    branch: int = 0  # points at which a limit is off, to calibrate and to test
    own: tuple[int, ...] = ()  # on seeds of their own: train, calibration, test, branch
    common: tuple[int, int] = (0, 0)  # further test points, and seeds that all of them share
    random_state: int = 0

    def dataset_arguments(self, path: str, scale: float) -> list[str]:
        """Return the options for `sweeps.dataset`; `scale` makes everything smaller."""
        sizes = {
            "points": self.points,
            "calibration": self.calibration,
            "test": self.test,
            "other-points": self.other_points,
            "branch": self.branch,
        }
        counts = _scaled(sizes, scale)
        counts["seeds"] = max(round(self.seeds * min(1.0, 4 * scale)), 4)
        counts["train-seeds"] = min(self.train_seeds, counts["seeds"])
        return [*self._words(counts), "--output", path]

    def own_arguments(self, path: str, scale: float) -> list[str]:
        """Return the options for `sweeps.dataset` for the points on seeds of their own."""
        sizes = dict(zip(("points", "calibration", "test", "branch"), self.own, strict=True))
        own = max(round(OWN_SEEDS * min(1.0, 4 * scale)), 2)
        counts = _scaled(sizes, scale) | {"own-seeds": own}
        if scale < 1:
            counts["seeds"] = 2 * own
        return [*self._words(counts), "--output", path]

    def common_arguments(self, path: str, scale: float) -> list[str]:
        """Return the options for `sweeps.dataset` for points that share sets of seeds; it needs 16
        points of each role.
        """
        counts = _scaled({"points": 16, "calibration": 16, "test": self.common[0]}, scale)
        counts["seeds"] = max(round(self.common[1] * min(1.0, 4 * scale)), 4)
        counts |= {"train-seeds": 1, "first-seed": FIRST_COMMON_SEED}
        return [*self._words(counts, self.random_state + 1), "--output", path]

    def _words(self, counts: Mapping[str, int], random_state: int | None = None) -> list[str]:
        words = [text for name, count in counts.items() for text in (f"--{name}", str(count))]
        state = self.random_state if random_state is None else random_state
        words += ["--random-state", str(state)] if state else []
        return [self.strategy, *words, *(["--baseline", BASELINE] if self.own else [])]

    def train_arguments(self, data: str, path: str, scale: float) -> list[str]:
        """Return the options for `surrogate.train`."""
        steps = max(round(self.steps * scale), 50)
        sizes = ["--members", str(self.members), "--width", str(self.width)]
        return [data, "--steps", str(steps), *sizes, "--output", path]


def _scaled(sizes: Mapping[str, int], scale: float) -> dict[str, int]:
    return {name: max(round(count * scale), 16) if count else 0 for name, count in sizes.items()}


SPACES: Mapping[str, PaperSpace] = {
    "iter08": PaperSpace(
        "iteration 8, 6 parameters", "iter08_token_budget",
        points=4096, calibration=640, test=1024, seeds=64, train_seeds=8, other_points=64,
        branch=64, own=(256, 640, 640, 64), common=(64, 128), random_state=2,
    ),
    "iter01": PaperSpace(
        "iteration 1, 7 parameters, a plateau", "iter01_priority_cascade",
        points=1024, calibration=1024, test=1024, seeds=32, train_seeds=8, steps=3000,
    ),
    "joint": PaperSpace(
        "all layers, 18 parameters", "joint_all_layers",
        points=16_384, calibration=1024, test=2592, seeds=8, train_seeds=8, steps=36_000,
        members=10, width=128,
    ),
}  # fmt: skip
