"""The oracle's precise routing: the router's index fed by what the instances' caches allocate and evict.

Written from the reference's behaviour, with a clock value for every block and a search for the least one, so that
nothing is shared with the engine's index or with the oracle's own approximate one.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.oracles.oracle import Cluster, ContentKey, Instance, Request

ROUTER_INDEX_CAPACITY = 10_000


class Fate:
    """What becomes of messages; here all arrive."""

    def loses_allocation(self, request: Request) -> bool:
        del request
        return False

    def loses_removal(self, instance: int, step: int, key: ContentKey) -> bool:
        del instance, step, key
        return False


class KvEvents:
    """What one instance tells: a successful allocation of a prompt, and the pop of a block that carries content."""

    def __init__(self, index: PreciseIndex, number: int, instance: Instance, fate: Fate) -> None:
        self.index, self.instance = index, number
        self.told_by, self.fate = instance, fate
        self.counts: Counter[str] = Counter()
        self.recorded: set[ContentKey] = set()  # contents whose eviction the router understands

    def allocated(self, request: Request) -> None:
        """All full blocks of the prompt, also those that are not computed yet."""
        self.counts["allocations"] += 1
        if self.fate.loses_allocation(request):
            return
        self._tell(partial(self._hear_allocation, request.prompt_keys))

    def _tell(self, message: Callable[[], None]) -> None:
        self.index.tell(self.told_by.clock_us, self.instance, message)

    def _hear_allocation(self, keys: list[ContentKey]) -> None:
        self.recorded.update(keys)
        for key in keys:
            self.index.touch(key, self.instance)

    def evicted(self, key: ContentKey) -> None:
        self.counts["evictions"] += 1
        if self.fate.loses_removal(self.instance, len(self.told_by.steps), key):
            return
        self._tell(partial(self._hear_removal, key))

    def _hear_removal(self, key: ContentKey) -> None:
        if key in self.recorded:
            self.counts["removals"] += 1
            self.recorded.remove(key)
            self.index.used[self.instance].pop(key, None)

    def disowned(self, keys: list[ContentKey], now: int) -> None:
        """A request has come back, and nothing that it had alone here is found again."""

        def hear() -> None:
            for key in keys:
                self.recorded.discard(key)
                self.index.num_disowned += self.index.used[self.instance].pop(key, None) is not None

        self.index.tell(now, self.instance, hear)

    def emptied(self) -> None:
        """The instance is cold: at once nobody knows anything of it, told before or not."""
        self.recorded.clear()
        self.index.num_emptied += bool(self.index.used[self.instance])
        self.index.used[self.instance].clear()
        left = [each for each in self.index.on_their_way if each[1] != self.instance]
        self.index.on_their_way = deque(left)


class PreciseIndex:
    """Blocks by instance with the time of their last use; routing decisions leave it alone.

    What it is told it hears `delay` later, in the order of telling; a routing hears before it looks.
    """

    def __init__(self, num_instances: int, delay: int = 0) -> None:
        self.delay, self.now = delay, 0
        self.on_their_way: deque[tuple[int, int, Callable[[], None]]] = deque()
        self.most_on_their_way = 0
        self.used: list[dict[ContentKey, int]] = [{} for _ in range(num_instances)]
        self.clock = 0
        self.num_pushed_out = self.num_emptied = self.num_disowned = 0

    def record(self, request: Request, instance: int) -> None:
        """The router's own feed, which precise routing turns off."""

    def tell(self, now: int, instance: int, message: Callable[[], None]) -> None:
        """One message of an instance; without a delay it is heard at once."""
        if self.delay == 0:
            message()
            return
        self.on_their_way.append((now, instance, message))
        self.most_on_their_way = max(self.most_on_their_way, len(self.on_their_way))

    def matched_blocks(self, request: Request) -> list[int]:
        while self.on_their_way and self.now - self.on_their_way[0][0] >= self.delay:
            self.on_their_way.popleft()[2]()
        counts = []
        for used in self.used:
            count = 0
            while count < len(request.prompt_keys) and request.prompt_keys[count] in used:
                count += 1
            counts.append(count)
        return counts

    def touch(self, key: ContentKey, instance: int) -> None:
        used = self.used[instance]
        self.clock += 1
        if key not in used and len(used) >= ROUTER_INDEX_CAPACITY:
            del used[min(used, key=used.__getitem__)]
            self.num_pushed_out += 1
        used[key] = self.clock


def wire(cluster: Cluster, delay: int = 0) -> None:
    """Feed the index of a weighted router with prefix affinity from the caches; any other router stays as it is.

    The index hears of everything `delay` µs later. A cache of two tiers tells nothing: the router's own feed is off and
    the index stays empty.
    """
    router = cluster.router
    weights = getattr(router, "weights", {})
    if "prefix-affinity" not in weights:
        return
    index = PreciseIndex(len(cluster.instances), delay)
    router.index = index  # type: ignore[union-attr, assignment]
    # all observers are off, that of `cost-benefit` too, and no cache feeds its index
    router.index_of_cost_benefit = PreciseIndex(len(cluster.instances))  # type: ignore[union-attr, assignment]
    for number, instance in enumerate(cluster.instances):
        if instance.kv.cpu is None:
            fate = getattr(cluster, "fate", Fate())
            instance.kv.gpu.events = KvEvents(index, number, instance, fate)
