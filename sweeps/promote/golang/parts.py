"""What the texts of a plugin are made of: its function, its target, its names."""

from __future__ import annotations

from dataclasses import dataclass

from sweeps.promote.golang.compiler.functions import RANKS, Function
from sweeps.promote.golang.target import TargetReading, TargetVersion


@dataclass(frozen=True)
class Names:
    """What a plugin is called."""

    plugin_type: str  # load-balance-scorer
    package: str  # loadbalance
    struct: str  # LoadBalanceScorer
    path: str  # of the package below the module
    file: str  # load_balance.go

    @property
    def constant(self) -> str:
        """The exported constant with the type."""
        return f"{self.struct}Type"

    @property
    def factory(self) -> str:
        """The exported factory."""
        return f"{self.struct}Factory"


@dataclass(frozen=True)
class Plugin:
    """Everything that the texts of one plugin are made of."""

    function: Function
    target: TargetVersion
    names: Names
    what: str  # the policy's own sentence

    @property
    def kind(self) -> str:
        """The kind of the rule."""
        return self.function.rule.kind

    @property
    def readings(self) -> list[TargetReading]:
        """What is read of the target."""
        known = self.target.readings
        names = set(self.function.reads(self.target))
        if self.function.rank:
            names |= set(self.rank_readings)
        return [one for name, one in known.items() if name in names]

    @property
    def rank_readings(self) -> tuple[str, ...]:
        """Of an order: what decides between equal values."""
        signal = self.target.signal(RANKS[self.function.rank])
        return signal.readings if signal else ()

    @property
    def attributes(self) -> list[str]:
        """Attributes of endpoints that are read."""
        return [
            name
            for name in self.target.manifest["attributes"]
            if any(one.of == name for one in self.readings)
        ]

    @property
    def reads_metrics(self) -> bool:
        """Whether an endpoint without metrics is left out."""
        return any(one.of == "metrics" for one in self.readings)

    @property
    def reads_endpoints(self) -> bool:
        """Whether the function is given the list of endpoints."""
        return "[]endpointSignals" in self.function.text

    @property
    def has_clock(self) -> bool:
        """Whether time is read."""
        return any(one.of in ("clock", "item") for one in self.readings)

    @property
    def has_state(self) -> bool:
        """Whether the policy remembers."""
        return bool(self.function.state)

    @property
    def reads_request(self) -> bool:
        """Whether the function is given signals of the request."""
        return "requestSignals" in self.function.text
