"""The spaces that surrogates are fitted to, and how much of each is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MOST_WANTED = "ttft_p99_ms[critical]"


@dataclass(frozen=True)
class Space:
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

    def dataset_arguments(self, path: str, scale: float) -> list[str]:
        """What `sweeps.dataset` is given; `scale` makes everything smaller."""
        sizes = {
            "points": self.points,
            "calibration": self.calibration,
            "test": self.test,
            "other-points": self.other_points,
        }
        counts = {
            name: max(round(count * scale), 16) if count else 0 for name, count in sizes.items()
        }
        counts["seeds"] = max(round(self.seeds * min(1.0, 4 * scale)), 4)
        counts["train-seeds"] = min(self.train_seeds, counts["seeds"])
        words = [text for name, count in counts.items() for text in (f"--{name}", str(count))]
        return [self.strategy, *words, "--out", path]

    def train_arguments(self, data: str, path: str, scale: float) -> list[str]:
        """What `surrogate.train` is given."""
        steps = max(round(self.steps * scale), 50)
        return [data, "--steps", str(steps), "--out", path]


SPACES: Mapping[str, Space] = {
    "iter08": Space(
        "iteration 8, 6 parameters", "iter08_token_budget", 4096, 2048, 1024, 64, 8, 128
    ),
    "iter01": Space(
        "iteration 1, 7 parameters, a plateau",
        "iter01_priority_cascade",
        256,
        64,
        128,
        32,
        8,
        steps=3000,
    ),
    "joint": Space(
        "all layers, 18 parameters", "joint_all_layers", 16384, 1024, 2592, 8, 8, steps=24_000
    ),
}
