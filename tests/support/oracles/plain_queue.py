"""The gateway's queue in plain Python, written from the semantics of BLIS as of August 2026."""

from __future__ import annotations

from dataclasses import dataclass, field

NOBODY = -1


@dataclass
class Waiting:
    """A request in the queue; `number` counts arrivals."""

    number: int
    priority: int
    tenant: int
    slo_class: int


@dataclass
class PlainQueue:
    """Bands by priority, flows by tenant; 0 is no limit."""

    band_capacity: int = 0
    max_depth: int = 0
    sheds: bool = False
    usage_limit: float = 1.0
    round_robin: bool = False
    targets: dict[int, int] | None = None  # by class; None: not by deadline
    bands: list[int] = field(default_factory=list)
    queued: list[Waiting] = field(default_factory=list)
    last_tenant: dict[int, int] = field(default_factory=dict)

    def enter(self, one: Waiting) -> tuple[bool, int]:
        """Whether the request finds room, and who has to leave for it."""
        self.bands = sorted({*self.bands, one.priority}, reverse=True)
        in_band = [other for other in self.queued if other.priority == one.priority]
        if self.band_capacity and len(in_band) >= self.band_capacity:
            return False, NOBODY
        victim = None
        if self.max_depth and len(self.queued) >= self.max_depth:
            sheddable = [other for other in self.queued if other.priority < 0]
            if not self.sheds or not sheddable:
                return False, NOBODY
            victim = min(sheddable, key=lambda other: (other.priority, -other.number))
            if one.priority <= victim.priority:
                return False, NOBODY
            self.queued.remove(victim)
        self.queued.append(one)
        return True, NOBODY if victim is None else victim.number

    def dispatch(self, saturation: float, entered_us: list[int]) -> int:
        """The request that leaves for an instance."""
        most = len(self.bands) - 1
        for place, band in enumerate(self.bands):
            ceiling = 1.0 - place * (1.0 - self.usage_limit) / most if most else 1.0
            if saturation >= ceiling:
                return NOBODY
            there = [one for one in self.queued if one.priority == band]
            if not there:
                continue
            tenant = self._tenant(band, there)
            flow = [one for one in there if one.tenant == tenant]
            chosen = flow[0]
            if self.targets is not None:
                chosen = min(flow, key=lambda one: (self._deadline(one, entered_us), one.number))
            self.last_tenant[band] = tenant
            self.queued.remove(chosen)
            return chosen.number
        return NOBODY

    def _tenant(self, band: int, there: list[Waiting]) -> int:
        if not self.round_robin:
            return there[0].tenant
        tenants = sorted({one.tenant for one in there})
        last = self.last_tenant.get(band)
        if last not in tenants:
            return tenants[0]
        return tenants[(tenants.index(last) + 1) % len(tenants)]

    def _deadline(self, one: Waiting, entered_us: list[int]) -> float:
        assert self.targets is not None
        target = self.targets.get(one.slo_class)
        return float("inf") if target is None else entered_us[one.number] + target
