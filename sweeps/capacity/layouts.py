"""Kinds of clusters: for each number of instances one layout of GPUs and roles, and what it costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.errors import ConfigError, closest
from blis_jax.latency.registry import Coefficients, lookup
from sweeps.strategies.arms import Arm

SHARES = (0.25, 0.5, 0.75)  # of the first of two GPUs, or of prefill instances
PREFILL, DECODE, BOTH = "prefill", "decode", "both"


@dataclass(frozen=True)
class Hardware:
    """The GPUs of an instance, their price and their coefficients; without these, the policy's own."""

    gpu: str = ""
    num_gpus: int = 1  # of one instance
    price: float = 1.0  # of a GPU-hour
    coefficients: Coefficients | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the policy on this GPU

    def group(self, count: int, role: str) -> InstanceGroup:
        """Return `count` instances on this hardware."""
        group = InstanceGroup(count, self.gpu, role)
        if self.coefficients is None:
            return group
        fit = self.coefficients
        return replace(
            group,
            alpha_coeffs=fit.alpha,
            beta_coeffs=fit.beta,
            **{"total_kv_blocks": fit.total_kv_blocks, **self.settings},
        )

    def described(self, config: ClusterConfig) -> ClusterConfig:
        """Return a configuration that names model, GPU and settings of an instance, to tell of and not to run."""
        if self.coefficients is None:
            return config
        fit = self.coefficients
        return config.replace(model=fit.model, hardware=fit.gpu, tp=fit.tp, **self.settings)


@dataclass(frozen=True)
class EqualInstances:
    """A number of instances of one kind."""

    hardware: Hardware
    role: str
    count: int

    def __str__(self) -> str:
        role = "" if self.role == BOTH else f" {self.role}"
        return f"{self.count}{role}" + (f" × {self.hardware.gpu}" if self.hardware.gpu else "")


@dataclass(frozen=True)
class Layout:
    """A cluster."""

    parts: tuple[EqualInstances, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))

    @property
    def num_instances(self) -> int:
        """Return the number of instances of all kinds together."""
        return sum(part.count for part in self.parts)

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of all instances together."""
        return sum(part.count * part.hardware.num_gpus for part in self.parts)

    @property
    def cost_per_hour(self) -> float:
        """Return the price of all GPUs per hour."""
        return sum(part.count * part.hardware.num_gpus * part.hardware.price for part in self.parts)

    def configured(self, config: ClusterConfig, is_corrected: bool) -> ClusterConfig:
        """Return the configuration's policies on this cluster: its instances, roles and hand-over."""
        is_split = any(part.role != BOTH for part in self.parts)
        changes: dict[str, object] = {"hand_over_policy": "pools"} if is_split else {}
        if is_corrected:
            changes["corrected"] = True
        if is_split or any(part.hardware.coefficients for part in self.parts):
            changes["instances"] = tuple(
                part.hardware.group(part.count, part.role) for part in self.parts
            )
        else:
            changes["num_instances"] = self.num_instances
        return config.replace(**changes)


@dataclass(frozen=True)
class LayoutFamily:
    """The layouts of one kind, one for each number of instances."""

    first: Hardware
    second: Hardware | None = None  # None: all instances are alike
    share: float = 1.0  # of the first hardware, or of prefill instances if split
    is_split: bool = False

    @property
    def name(self) -> str:
        """Return the words that tell this kind of cluster from the others, such as `50 % H100, 50 % L40S`."""
        gpu = self.first.gpu or "the policy's instances"
        if self.is_split:
            return f"{gpu}, {100 * self.share:g} % prefill"
        if self.second is None:
            return gpu
        return f"{100 * self.share:g} % {self.first.gpu}, {100 - 100 * self.share:g} % {self.second.gpu}"

    @property
    def least(self) -> int:
        """Return the fewest instances that this kind of cluster can have."""
        return 2 if self.is_split or self.second is not None else 1

    def of(self, num_instances: int) -> Layout:
        """Return the cluster of this kind with `num_instances` instances, which must be `least` or more."""
        if not self.is_split and self.second is None:
            return Layout((EqualInstances(self.first, BOTH, num_instances),))
        count = min(max(math.floor(self.share * num_instances + 0.5), 1), num_instances - 1)
        rest = num_instances - count
        if self.second is not None:
            return Layout(
                (EqualInstances(self.first, BOTH, count), EqualInstances(self.second, BOTH, rest))
            )
        return Layout(
            (EqualInstances(self.first, PREFILL, count), EqualInstances(self.first, DECODE, rest))
        )


def families(
    gpus: Sequence[str],
    model: str | None,
    tp: int | None,
    prices: Mapping[str, float],
    is_split: bool,
    arm: Arm,
) -> tuple[LayoutFamily, ...]:
    """List the kinds of clusters to try: each GPU alone, every two mixed, and pools if `is_split`.

    Without GPUs the instances are the arm's, with its number of GPUs each; without a model they serve the arm's.

    Raises:
        ConfigError: the model has no coefficients on one of the GPUs, or a price is of no GPU.
    """
    for name in prices:
        if name not in gpus:
            raise ConfigError(
                f"--prices: {name!r} is not among --gpus ({', '.join(gpus) or 'none'}); leave it out"
                f"{closest(name, gpus)}"
            )
    kinds = [_hardware(gpu, model, tp, prices.get(gpu, 1.0), arm) for gpu in gpus]
    kinds = kinds or [Hardware(num_gpus=arm.config.tp * arm.config.dp)]
    kinds_of_cluster = [LayoutFamily(kind) for kind in kinds]
    for first, second in itertools.combinations(kinds, 2):
        kinds_of_cluster += [LayoutFamily(first, second, share) for share in SHARES]
    if is_split:
        kinds_of_cluster += [
            LayoutFamily(kind, share=share, is_split=True) for kind in kinds for share in SHARES
        ]
    return tuple(kinds_of_cluster)


def _hardware(gpu: str, model: str | None, tp: int | None, price: float, arm: Arm) -> Hardware:
    if model is None:
        model, tp = arm.config.model, tp or arm.config.tp
    try:
        fit = lookup(model, gpu, tp)
    except ConfigError as error:
        raise ConfigError(f"--gpus {gpu}: {error}") from None
    return Hardware(gpu, fit.tp, price, fit, arm.settings_on(gpu))
