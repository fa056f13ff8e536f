"""LoRA adapters of a cluster: what `--lora-config` declares, and the options that override that file.

Source: BLIS as of August 2026, `sim/lora` and `cmd/root.go`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.settings import setting
from blis_jax.errors import ConfigError, closest, shortened
from blis_jax.files.input_files import mapping
from blis_jax.files.strict_yaml import number_at, section_of, value_at, whole_at
from blis_jax.workload.table import RequestTable, with_column

if TYPE_CHECKING:
    import numpy as np

    from blis_jax.cluster.config import ClusterConfig

SCORER = "lora-affinity"
LONGEST_LOAD_US, MOST_RESERVED_BYTES = 1e15, 1e18
_MOST = 2**31 - 1
MOST_ADAPTERS = 4096  # that can be declared: instances have a column for each
NUMBERS = {  # with the values that BLIS uses if the file has none: µs, bytes/µs, bytes
    "load_base_latency_us": 1500.0,
    "load_bandwidth_bytes_us": 2.0e6,
    "footprint_bytes_per_rank": 2.0e6,
}
_KEYS = ("adapter_capacity", *NUMBERS, "step_overhead_tiers", "adapters")


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that requests may name; if `base_model` is set, only requests for that model may name it."""

    id: str
    rank: int
    base_model: str = ""


@dataclass(frozen=True)
class OverheadTier:
    """The extra step time per adapter in a batch with largest rank `rank`, as the share k6 ÷ k7 of the step time."""

    rank: int
    k6: float
    k7: float


DEFAULT_TIERS = (
    OverheadTier(8, 0.02, 1.0),
    OverheadTier(16, 0.035, 1.0),
    OverheadTier(32, 0.06, 1.0),
)


@dataclass(frozen=True)
class LoraConfig:
    """The content of a `--lora-config` file; a field is None where the file does not set it."""

    adapters: tuple[Adapter, ...] = ()
    adapter_capacity: int | None = None
    load_base_latency_us: float | None = None
    load_bandwidth_bytes_us: float | None = None
    footprint_bytes_per_rank: float | None = None
    step_overhead_tiers: tuple[OverheadTier, ...] | None = None

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Return base load latency, load bandwidth, and bytes per rank; BLIS's default for each missing number."""
        base, bandwidth, footprint = (
            usual if (number := getattr(self, name)) is None else number
            for name, usual in NUMBERS.items()
        )
        return base, bandwidth, footprint

    @property
    def tiers(self) -> tuple[OverheadTier, ...]:
        """Return the overhead tiers of the file, or BLIS's tiers if the file has none."""
        return DEFAULT_TIERS if self.step_overhead_tiers is None else self.step_overhead_tiers

    def or_else(self, others: LoraConfig) -> LoraConfig:
        """Return this content, with unset fields filled in from `others`; the adapters stay this content's own."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "adapters"]
        missing = {name: getattr(others, name) for name in names if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)

    def plain(self) -> dict[str, Any]:
        """Return the content as the mapping that `config_of` reads."""
        said = {name: getattr(self, name) for name in _KEYS[:4] if getattr(self, name) is not None}
        if self.step_overhead_tiers is not None:
            tiers = self.step_overhead_tiers
            said["step_overhead_tiers"] = {
                str(tier.rank): {"k6": tier.k6, "k7": tier.k7} for tier in tiers
            }
        return said | {"adapters": [dataclasses.asdict(adapter) for adapter in self.adapters]}


@dataclass(frozen=True)
class AdapterSettings:
    """LoRA adapters of blis-2026-08."""

    lora_config: LoraConfig = setting(  # noqa: RUF009  # frozen
        LoraConfig(), "LoRA adapters that requests may name, and what they cost",
        words="a path, or the mapping below `lora`; see [LoRA adapters](../how-to/adapters.md)",
        option="YAML file that declares LoRA adapters; blis-2026-08", metavar="FILE", is_found=True,
    )  # fmt: skip
    lora_adapter_capacity: int = setting(
        0, "most adapters that an instance holds at a time; if neither the option nor the file says it, none is loaded",
        "adapters", low=0, is_found=True,
    )  # fmt: skip


# --- reading a file -------------------------------------------------------------------------------


def given_config(value: object) -> LoraConfig:
    """Return the adapter configuration that a setting's value describes: a mapping, or the path of a file with one.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed.
    """
    if isinstance(value, LoraConfig):
        return value
    section, place = section_of(value, "lora_config", "lora")
    made = config_of(section or {}, place)
    if isinstance(value, Mapping) or made.step_overhead_tiers != ():
        return made
    return dataclasses.replace(made, step_overhead_tiers=None)  # BLIS takes an empty one for none


def config_of(section: object, place: str) -> LoraConfig:
    """Return the adapter configuration in the mapping under the file's key `lora`.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    section = mapping(section, place, _KEYS)
    said: dict[str, Any] = {
        name: number_at(section[name], f"{place}.{name}")
        for name in NUMBERS
        if section.get(name) is not None
    }
    if section.get("adapter_capacity") is not None:
        at = f"{place}.adapter_capacity"
        said["adapter_capacity"] = whole_at(section["adapter_capacity"], at, -math.inf, _MOST)
    tiers = section.get("step_overhead_tiers")
    if tiers is not None:
        said["step_overhead_tiers"] = tuple(_tiers(tiers, f"{place}.step_overhead_tiers"))
    adapters = section.get("adapters") or []
    if not isinstance(adapters, list | tuple):
        raise ConfigError(f"{place}.adapters: got {shortened(adapters)}, allowed is a list")
    made = tuple(
        _adapter(adapter, f"{place}.adapters[{at}]") for at, adapter in enumerate(adapters)
    )
    _check_ids(made, place)
    return LoraConfig(made, **said)


def _adapter(entry: object, place: str) -> Adapter:
    entry = mapping(entry, place, ("id", "rank", "base_model"))
    texts = {
        name: value_at(entry.get(name) or "", f"{place}.{name}", str)
        for name in ("id", "base_model")
    }
    if not texts["id"]:
        raise ConfigError(f"{place}.id is empty; give every adapter an id")
    return Adapter(rank=whole_at(entry.get("rank", 0), f"{place}.rank", 1, _MOST), **texts)


def _check_ids(adapters: Collection[Adapter], place: str) -> None:
    ids = [adapter.id for adapter in adapters]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{place}.adapters: the id {twice!r} is given twice; keep one of them")
    if len(ids) > MOST_ADAPTERS:
        raise ConfigError(f"{place}.adapters: {len(ids)} are declared, allowed are {MOST_ADAPTERS}")


def _tiers(section: object, place: str) -> Iterator[OverheadTier]:
    for key, entry in mapping(section, place).items():
        written = int(key) if isinstance(key, str) and key.isdigit() else key
        rank = whole_at(written, f"{place}: rank", 1, _MOST)
        at = f"{place}[{rank}]"
        entry = mapping(entry, at, ("k6", "k7"))
        k6 = number_at(entry.get("k6") or 0.0, f"{at}.k6", 0, math.inf)
        k7 = number_at(entry.get("k7") or 0.0, f"{at}.k7", 0, math.inf, excludes_low=True)
        yield OverheadTier(rank, k6, k7)


# --- what follows for a cluster -------------------------------------------------------------------


def defaults(config: ClusterConfig, said: Collection[str]) -> dict[str, Any]:
    """Return `lora_adapter_capacity` from the file, if only the file sets it; check the file's numbers.

    Raises:
        ConfigError: a number of the file is not allowed.
    """
    lora: LoraConfig = config.lora_config
    capacity, is_found = lora.adapter_capacity, "lora_adapter_capacity" not in said
    _check_numbers(lora)
    if not lora.adapters:  # then a capacity has no effect
        return {}
    if is_found and capacity is not None and capacity <= 0:
        raise ConfigError(
            f"lora_config: adapter_capacity must be above 0 where adapters are declared, got {capacity}"
        )
    followed = {"lora_adapter_capacity": capacity} if is_found and capacity is not None else {}
    _check_costs(lora, followed.get("lora_adapter_capacity", config.lora_adapter_capacity))
    return followed


def _check_numbers(lora: LoraConfig) -> None:
    for name, number in zip(NUMBERS, lora.numbers, strict=True):
        may_be_zero = name == "load_base_latency_us"
        if not math.isfinite(number) or number < 0 or (number == 0 and not may_be_zero):
            words = "at least 0" if may_be_zero else "above 0"
            raise ConfigError(f"lora_config: {name} must be finite and {words}, got {number:g}")


def _check_costs(lora: LoraConfig, capacity: int) -> None:
    for adapter in lora.adapters if capacity else ():
        time_us = _load_us(lora, adapter.rank)
        if not time_us <= LONGEST_LOAD_US:
            raise ConfigError(
                f"lora_config: adapter {adapter.id!r} of rank {adapter.rank} would take {time_us:g} µs to load, "
                f"allowed are {LONGEST_LOAD_US:g}; lower its rank or footprint_bytes_per_rank"
            )
    reserved = _reserved(lora, capacity)
    if not reserved <= MOST_RESERVED_BYTES:
        raise ConfigError(
            f"lora_config: {capacity} adapters of {lora.numbers[2]:g} bytes per rank would reserve {reserved:g} bytes, "
            f"allowed are {MOST_RESERVED_BYTES:g}; lower adapter_capacity, footprint_bytes_per_rank or the ranks"
        )


def _load_us(lora: LoraConfig, rank: int) -> float:
    """µs to load an adapter, before it is rounded up."""
    base, bandwidth, footprint = lora.numbers
    transfer = footprint * float(rank) / bandwidth
    return base + (math.ceil(transfer) if math.isfinite(transfer) else transfer)


def _reserved(lora: LoraConfig, capacity: int) -> float:
    largest = max((adapter.rank for adapter in lora.adapters), default=0)
    return float(capacity) * lora.numbers[2] * float(largest)


def has_adapters(config: ClusterConfig) -> bool:
    """Return whether instances load adapters: some are declared, and there is room for one."""
    return bool(config.lora_config.adapters) and config.lora_adapter_capacity > 0


def reserved_bytes(config: ClusterConfig) -> int:
    """Return the bytes of GPU memory that an instance reserves for adapters, whether or not any are loaded."""
    return int(_reserved(config.lora_config, config.lora_adapter_capacity))


def load_times(config: ClusterConfig) -> list[int]:
    """Return the time to load each declared adapter, in whole µs."""
    lora = config.lora_config
    return [max(1, math.ceil(_load_us(lora, adapter.rank))) for adapter in lora.adapters]


def overheads(config: ClusterConfig) -> list[float]:
    """Return, for each declared adapter, the share by which every adapter in a batch lengthens the step if this adapter
    has the batch's largest rank. The share is that of the tier with the nearest rank; of two equally near tiers, the
    lower.
    """
    tiers = config.lora_config.tiers
    shares = []
    for adapter in config.lora_config.adapters:
        nearest = min(
            tiers, key=lambda tier: (abs(tier.rank - adapter.rank), tier.rank), default=None
        )
        shares.append(0.0 if nearest is None else nearest.k6 / nearest.k7)
    return shares


def with_adapters(
    table: RequestTable,
    config: ClusterConfig,
    adapters: np.ndarray | None,
    models: np.ndarray | None,
) -> RequestTable:
    """Return the request table with each request's adapter; unchanged if no request names one or none is ever loaded.

    Args:
        table: the requests.
        config: the cluster.
        adapters: text `[request]`, each request's adapter, empty for none; None if no request names an adapter.
        models: text `[request]`, each request's model, in the same form.

    Raises:
        ConfigError: a request names an adapter that is not declared, or is for another model.
    """
    if adapters is None:
        return table
    _check_named(config, adapters, itertools.repeat("") if models is None else models)
    if not has_adapters(config):
        return table
    place = {"": 0} | {adapter.id: at for at, adapter in enumerate(config.lora_config.adapters, 1)}
    return with_column(table, "adapter", [place[name] for name in adapters.tolist()])


def check_clients(config: ClusterConfig, clients: Iterable[Any]) -> None:
    """Refuse clients and cohorts of a workload file that name unusable adapters, even if they never send a request.

    Raises:
        ConfigError: a client names an adapter that is not declared or belongs to another model.
    """
    named = {(getattr(client, "adapter", ""), client.model or "") for client in clients}
    _check_named(config, *zip(*named, strict=True)) if named else None


def _check_named(config: ClusterConfig, adapters: Iterable[str], models: Iterable[str]) -> None:
    declared = {adapter.id: adapter for adapter in config.lora_config.adapters}
    for name, model in sorted({*zip(adapters, models, strict=False)} - {("", "")}):
        if name and not declared:
            raise ConfigError(
                f"adapter {name!r}: the workload names it, and no adapter is declared; give --lora-config"
            )
        if name and name not in declared:
            raise ConfigError(
                f"adapter {name!r}: the workload names it, and lora_config does not declare it; declared are "
                f"{', '.join(declared)}{closest(name, declared)}"
            )
        base = declared[name].base_model if name else ""
        if base and base != model:
            said = f"the model {model!r}" if model else "no model"
            raise ConfigError(
                f"adapter {name!r} is for the base model {base!r}, and a client that names it has {said}; give the "
                "client that model, or leave base_model out"
            )


def remarks(config: ClusterConfig, said: Collection[str]) -> Iterator[str]:
    """Yield a warning for each setting given (`said`) whose effect differs from its name, as in BLIS."""
    if config.lora_config.adapters and not config.lora_adapter_capacity:
        yield (
            "adapters are declared without a capacity: none is loaded, and none takes time or memory; give "
            "--lora-adapter-capacity"
        )
    if has_adapters(config) and "total_kv_blocks" in said:
        yield (
            f"--total-kv-blocks {config.total_kv_blocks} is taken as it is: the {reserved_bytes(config) / 2**30:.2f} "
            "GiB that adapters reserve are not subtracted; leave it out"
        )


def check(config: ClusterConfig) -> None:
    """Refuse adapters where their effect is not defined.

    Raises:
        ConfigError: the revision has none, or another configured mechanism is incompatible with adapters.
    """
    if config.lora_config != LoraConfig() and not config.is_august:
        raise ConfigError(
            "lora_config is part of the revision blis-2026-08 alone; take the profile blis-2026-08, or leave it out"
        )
