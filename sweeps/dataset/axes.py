"""The descriptors of workload and cluster that a dataset may vary besides a strategy's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.commands.values import number_within
from blis_jax.errors import ConfigError, closest
from blis_jax.workload.spec import WorkloadSpec, override
from surrogate.columns import InputColumn, Kind
from sweeps.robustness.plan import Extent, Shape
from sweeps.strategies.space import Dimension

SCALED = {"gaussian": ("mean", "std_dev", "min", "max"), "exponential": ("mean",)}
SCALED |= {"constant": ("value",)}
_MEAN = {"gaussian": "mean", "exponential": "mean", "constant": "value"}
_WHOLE_TOKENS = ("min", "max", "value")


@dataclass(frozen=True)
class DescriptorKind:
    """One descriptor: its unit, its allowed values, and the cluster setting that it replaces, if any."""

    name: str
    unit: str
    low: float
    high: float
    is_whole: bool = False
    setting: str = ""

    @property
    def is_workload(self) -> bool:
        """Return whether the descriptor changes the requests; the others change a setting of the cluster."""
        return not self.setting


KINDS = (
    DescriptorKind("rate", "requests/s", 1e-3, 1e6),
    DescriptorKind("arrival_cv", "1", 0.01, 10.0),
    DescriptorKind("share_critical", "1", 0.001, 0.998),
    DescriptorKind("share_standard", "1", 0.001, 0.998),
    DescriptorKind("share_sheddable", "1", 0.001, 0.998),
    DescriptorKind("input_scale", "1", 0.01, 100.0),
    DescriptorKind("output_scale", "1", 0.01, 100.0),
    DescriptorKind("prefix_share", "1", 0.0, 0.99),
    DescriptorKind("kv_blocks", "blocks per instance", 1, 2**31 - 2, True, "total_kv_blocks"),
    DescriptorKind("instances", "1", 1, 64, True, "num_instances"),
    DescriptorKind("token_budget", "tokens", 1, 2**31 - 2, True, "max_num_scheduled_tokens"),
)
BY_NAME = {kind.name: kind for kind in KINDS}


def column_at(axis: Dimension) -> InputColumn:
    """Return a descriptor's axis as an input of a surrogate."""
    kind: Kind = "integer" if axis.kind == "integer" else "real"
    return InputColumn(axis.name, kind, axis.low, axis.high, unit=BY_NAME[axis.name].unit)


def read_axes(text: str) -> tuple[Dimension, ...]:
    """Read the axes in `NAME=LOW:HIGH,…`.

    Raises:
        ConfigError: a part has another form, an unknown or repeated name, or an empty range.
    """
    axes: list[Dimension] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, span = part.partition("=")
        low_text, colon, high_text = span.partition(":")
        if not (equals and colon):
            raise ConfigError(f"--vary: {part!r} is not NAME=LOW:HIGH, such as rate=1000:3000")
        if name not in BY_NAME:
            raise ConfigError(
                f"--vary: {name!r} is unknown; there are {', '.join(BY_NAME)}"
                f"{closest(name, BY_NAME)}"
            )
        if name in (axis.name for axis in axes):
            raise ConfigError(f"--vary: {name} is given twice; keep one of them")
        kind = BY_NAME[name]
        low, high = _number(kind, low_text), _number(kind, high_text)
        axes.append(
            Dimension(name, kind.setting, "integer" if kind.is_whole else "real", low, high)
        )
        if not low < high:
            raise ConfigError(f"--vary: {part!r}: the low end must be below the high end")
    return tuple(axes)


def _number(kind: DescriptorKind, text: str) -> float:
    return number_within(f"--vary: {kind.name}", text, kind.low, kind.high, kind.is_whole)


def check_axes(axes: Sequence[Dimension], spec: WorkloadSpec, targets: Sequence[str]) -> None:
    """Refuse axes that a parameter of the strategy sets, too, or whose values the workload cannot take."""
    for axis in axes:
        if axis.target and axis.target in targets:
            raise ConfigError(
                f"--vary: {axis.name} is a parameter of the strategy already "
                f"({axis.target}); leave it out"
            )
    ends = [[axis.low for axis in axes], [axis.high for axis in axes]]
    for end in ends:
        workload_at(spec, dict(zip((axis.name for axis in axes), end, strict=True)))


def config_at(config: ClusterConfig, place: Mapping[str, float]) -> ClusterConfig:
    """Return the configuration with the settings among the descriptors replaced by their values in `place`."""
    settings = {BY_NAME[name].setting: value for name, value in place.items()}
    return config.replace(**{name: value for name, value in settings.items() if name})


def workload_at(spec: WorkloadSpec, place: Mapping[str, float]) -> WorkloadSpec:
    """Return the workload changed by the descriptors in `place`; the number of requests stays.

    Raises:
        ConfigError: the workload has no clients, rate or number of requests to change.
    """
    place = {name: value for name, value in place.items() if BY_NAME[name].is_workload}
    if not place:
        return spec
    if not spec.clients or spec.aggregate_rate is None or not spec.num_requests:
        raise ConfigError(
            "--vary: the workload has no clients, rate or number of requests of its own; "
            "give one that has"
        )
    clients = [client.model_dump() for client in spec.clients]
    _share_out(clients, place)
    for client in clients:
        _lengthen(client, place)
    changed = override(spec, clients=clients)
    rate = place.get("rate", spec.aggregate_rate)
    if "arrival_cv" in place:
        extent = Extent(None, spec.num_requests)
        return Shape("varied", changed).at(rate, place["arrival_cv"], extent)
    return override(changed, aggregate_rate=rate)


def _share_out(clients: list[dict[str, Any]], place: Mapping[str, float]) -> None:
    """Set the classes' shares of the requests, in place; classes without a share keep their proportions."""
    wanted = {name[6:]: value for name, value in place.items() if name.startswith("share_")}
    if not wanted:
        return
    total: dict[str, float] = {}
    for client in clients:
        total[client["slo_class"]] = total.get(client["slo_class"], 0.0) + client["rate_fraction"]
    for name in wanted:
        if name not in total:
            raise ConfigError(f"--vary: share_{name}: the workload has no {name} requests")
    rest, others = 1.0 - sum(wanted.values()), [name for name in total if name not in wanted]
    if rest <= 0 or not others:
        raise ConfigError(
            "--vary: the shares of the classes reach 1 or leave no other class; lower their "
            "high ends, or leave one class out"
        )
    left = sum(total[name] for name in others)
    for client in clients:
        name = client["slo_class"]
        share = wanted[name] if name in wanted else rest * total[name] / left
        client["rate_fraction"] *= share / total[name]


def _lengthen(client: dict[str, Any], place: Mapping[str, float]) -> None:
    """Scale a client's prompts and outputs, in place, and set its prefix to the wanted share of the mean prompt."""
    for axis, key in (
        ("input_scale", "input_distribution"),
        ("output_scale", "output_distribution"),
    ):
        if axis not in place:
            continue
        law = client[key]
        for name in SCALED[_law_type(law, axis)]:
            value = law["params"][name] * place[axis]
            law["params"][name] = max(round(value), 1) if name in _WHOLE_TOKENS else value
    if "prefix_share" in place and client["prefix_group"]:
        law, share = client["input_distribution"], place["prefix_share"]
        mean = law["params"][_MEAN[_law_type(law, "prefix_share")]]
        client["prefix_length"] = max(round(mean * share / (1.0 - share)), 1)


def _law_type(law: Mapping[str, Any], axis: str) -> str:
    kind = str(law["type"])
    if kind not in SCALED:
        raise ConfigError(
            f"--vary: {axis}: lengths of type {kind} cannot be scaled; allowed are "
            f"{', '.join(SCALED)}"
        )
    return kind
