"""The spaces that surrogates are fitted to, and how much of each is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    fresh_test: int = 0  # test points of a dataset of their own, drawn anew

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
        return [self.strategy, *words, "--output", path]

    def fresh_arguments(self, path: str, scale: float) -> list[str]:
        """What `sweeps.dataset` is given for the fresh test points; the rest is as small as may be."""
        fresh = replace(self, points=16, calibration=16, test=self.fresh_test, other_points=0)
        return [*fresh.dataset_arguments(path, scale), "--random-state", "1"]

    def train_arguments(self, data: str, path: str, scale: float) -> list[str]:
        """What `surrogate.train` is given."""
        steps = max(round(self.steps * scale), 50)
        return [data, "--steps", str(steps), "--output", path]


SPACES: Mapping[str, PaperSpace] = {
    "iter08": PaperSpace(
        "iteration 8, 6 parameters", "iter08_token_budget",
        points=4096, calibration=2048, test=1024, seeds=64, train_seeds=8, other_points=128,
        fresh_test=1024,
    ),
    "iter01": PaperSpace(
        "iteration 1, 7 parameters, a plateau", "iter01_priority_cascade",
        points=1024, calibration=1024, test=1024, seeds=32, train_seeds=8, steps=3000,
    ),
    "joint": PaperSpace(
        "all layers, 18 parameters", "joint_all_layers",
        points=16_384, calibration=1024, test=2592, seeds=8, train_seeds=8, steps=24_000,
    ),
}  # fmt: skip
