"""What the router of August 2026 sees and chooses, in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Draws:
    """Go's `Intn` on a stream of whole numbers below 2^31."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = iter(numbers.tolist())

    def below(self, count: int) -> int:
        one = next(self.numbers)
        if count & (count - 1) == 0:
            return int(one & (count - 1))
        most = 2**31 - 1 - 2**31 % count
        while one > most:
            one = next(self.numbers)
        return int(one % count)


@dataclass
class Seen:
    """What the router sees of one instance."""

    number: int
    queued: int = 0
    batch: int = 0
    used: float = 0.0
    in_flight: int = 0

    @property
    def load(self) -> int:
        return self.queued + self.batch + self.in_flight


class Router:
    """Round-robin, least-loaded or weighted."""

    def __init__(self, policy: str, scorers: list[tuple[str, float]], draws: Draws) -> None:
        total = sum(weight for _, weight in scorers)
        self.policy, self.draws, self.count = policy, draws, 0
        self.scorers = [(name, weight / total) for name, weight in scorers]

    def choose(self, seen: list[Seen], hits: Callable[[int], int]) -> int:
        if self.policy == "round-robin":
            self.count += 1
            return seen[(self.count - 1) % len(seen)].number
        if self.policy == "least-loaded":
            scores = [-float(one.load) for one in seen]
        else:
            scores = [0.0] * len(seen)
            for name, weight in self.scorers:
                own = self._scores(name, seen, hits)
                scores = [
                    total + min(max(one, 0.0), 1.0) * weight
                    for total, one in zip(scores, own, strict=True)
                ]
        tied = [one.number for one, score in zip(seen, scores, strict=True) if score == max(scores)]
        return tied[self.draws.below(len(tied))] if len(tied) > 1 else tied[0]

    @staticmethod
    def _scores(name: str, seen: list[Seen], hits: Callable[[int], int]) -> list[float]:
        if name == "kv-utilization":
            return [1 - one.used for one in seen]
        if name == "load-balance":
            return [1 / (1 + one.load) for one in seen]
        if name == "active-requests":
            most = max(one.in_flight for one in seen)
            return [(most - one.in_flight) / most if one.in_flight else 1.0 for one in seen]
        if name == "queue-depth":
            values, sign = [one.queued for one in seen], -1
        else:
            assert name == "precise-prefix-cache", name
            values, sign = [hits(one.number) for one in seen], 1
        least, most = min(values), max(values)
        if least == most:
            return [1.0] * len(values)
        return [(one - least if sign > 0 else most - one) / (most - least) for one in values]
