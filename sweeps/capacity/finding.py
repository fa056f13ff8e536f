"""The smallest cluster of a kind, by doubling and halving its number of instances.

With more instances a cluster is taken to do no worse. Then the sizes on the way to the right answer are fixed before
any run, and the allowed error is divided among them: the answer is wrong with no more than that probability.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sweeps.capacity.counting import CountedRuns
from sweeps.capacity.deciding import Answer, Decision, decide, looks
from sweeps.capacity.layouts import LayoutFamily
from sweeps.strategies.arms import Arm

OnSize = Callable[[int, Decision], None]


@dataclass(frozen=True)
class Smallest:
    """What is known of one policy on one kind of cluster."""

    arm: Arm
    family: LayoutFamily
    tried: dict[int, Decision]  # by number of instances, in ascending order

    @property
    def num_instances(self) -> int | None:
        """The fewest instances that meet the targets; None if none of those tried does."""
        return next((size for size, one in self.tried.items() if one.answer is Answer.MEETS), None)

    @property
    def fails_at(self) -> int | None:
        """The most instances below that do not; None if that was not found."""
        below = [
            size
            for size, one in self.tried.items()
            if one.answer is Answer.FAILS and size < (self.num_instances or size + 1)
        ]
        return max(below, default=None)

    @property
    def is_sharp(self) -> bool:
        """Whether one instance less is known not to suffice."""
        if self.num_instances is None:
            return False
        return self.num_instances == self.family.least or self.fails_at == self.num_instances - 1


@dataclass(frozen=True)
class Finder:
    """How one searches."""

    runs: CountedRuns
    confidence: float
    most: int  # instances

    @property
    def num_tries(self) -> int:
        """Sizes that are tried at most: some by doubling or halving, then between two of them."""
        return 2 * self.most.bit_length()

    def find(self, arm: Arm, family: LayoutFamily, is_corrected: bool, on_size: OnSize) -> Smallest:
        """The smallest cluster of one kind for one policy."""
        tried: dict[int, Decision] = {}

        def meets(size: int) -> bool:
            if size not in tried:
                tried[size] = self._decision(arm, family, size, is_corrected)
                on_size(size, tried[size])
            return tried[size].answer is Answer.MEETS

        least = family.least
        size = min(max(arm.config.num_instances, least), self.most)
        if meets(size):
            while size > least and meets(max(size // 2, least)):
                size = max(size // 2, least)
            low, high = max(size // 2, least), size
        else:
            while size < self.most and not meets(min(2 * size, self.most)):
                size = min(2 * size, self.most)
            low, high = size, min(2 * size, self.most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if meets(middle) else (middle, high)
        return Smallest(arm, family, dict(sorted(tried.items())))

    def _decision(self, arm: Arm, family: LayoutFamily, size: int, is_corrected: bool) -> Decision:
        shares = [target.share for target in self.runs.in_time.targets]
        every = looks(len(self.runs.seeds))
        wider = min(max(1 << (size - 1).bit_length(), family.least), max(self.most, size))
        configs = [
            family.of(number).configured(arm.config, is_corrected) for number in (size, wider)
        ]
        error = (1 - self.confidence) / self.num_tries
        for num_seeds in every:
            counts = self.runs.of(configs[0], num_seeds, configs[1])
            decision = decide(*counts, shares, error, len(every))
            if decision.answer is not Answer.OPEN:
                break
        return decision
