"""Tiers to which KV blocks are off-loaded: CPU memory and the storage behind it, as `--kv-offload-config` describes
them.

A block that a batch holds is copied to the CPU, and from there to every secondary tier. Source: BLIS as of August 2026,
`cmd/kv_offload_config.go` and `sim/kv`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.machines import deployment
from blis_jax.cluster.settings import setting
from blis_jax.errors import ConfigError, choices, shortened
from blis_jax.files.input_files import given_keys, mapping
from blis_jax.files.strict_yaml import chosen_at, number_at, section_of, value_at, whole_at
from blis_jax.latency.deployment import kv_bytes_per_token

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

MOST_TIERS = 16  # instances have rows for each
PHYSICS = ("read_bandwidth", "write_bandwidth", "base_latency")  # bytes/µs, bytes/µs, µs
RAMP = ("saturation_queue_depth", "single_transfer_fraction", "latency_jitter_stddev")
_BUFFERED = tuple(f"buffered_{name}" for name in (*PHYSICS, *RAMP))
DEVICES: dict[str, dict[str, float]] = {  # BLIS's defaults file
    name: dict(zip(PHYSICS, numbers, strict=True))
    for name, numbers in {
        "nvme_gen4": (7000.0, 5000.0, 80.0),
        "nvme_gen3": (3500.0, 3000.0, 100.0),
        "sata_ssd": (550.0, 500.0, 150.0),
        "cpu_dram": (20000.0, 20000.0, 1.0),
        "s3": (1000.0, 1000.0, 30000.0),
    }.items()
}
_KEYS = (
    *("cpu_bytes_to_use", "block_size", "blocks_per_chunk", "eviction_policy", "offload_prompt_only"),
    *("store_threshold", "tokens_per_hash", "self_describing_kv_events", "secondary_tiers"),
    "saves_prefill",
)  # fmt: skip
_TIER_KEYS = (
    *("type", "root_dir", "direct_io", "n_read_threads", "n_write_threads", "locality", "enable_kv_events"),
    *("device_class", *PHYSICS),
)  # fmt: skip


@dataclass(frozen=True)
class SecondaryTier:
    """Storage behind the CPU's memory: bytes/µs, times in µs, and threads that each run one transfer at a time."""

    read_bandwidth: float
    write_bandwidth: float
    base_latency: float
    n_read_threads: int = 16
    n_write_threads: int = 16
    saturation_queue_depth: int = 1
    single_transfer_fraction: float = 1.0
    latency_jitter_stddev: float = 0.0


@dataclass(frozen=True)
class KvOffloadConfig:
    """The content of a `--kv-offload-config` file; with 0 bytes of CPU memory nothing is off-loaded."""

    cpu_bytes_to_use: int = 0
    block_size: int | None = None
    blocks_per_chunk: int | None = None
    offload_prompt_only: bool = True
    # not in BLIS: blocks that are loaded back are not computed again, and take transfer time
    saves_prefill: bool = False
    secondary_tiers: tuple[SecondaryTier, ...] = ()
    per_block_bytes: int | None = None  # if a trace's header states it
    # keys without effect, for the headers of traces; `secondary_tiers` has each tier's
    words: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def has_jitter(self) -> bool:
        """Return whether transfer times are drawn at random."""
        return any(tier.latency_jitter_stddev > 0 for tier in self.secondary_tiers)

    def plain(self) -> dict[str, Any]:
        """Return the content as the mapping that `config_of` reads, with numbers in place of device classes."""
        said = {name: value for name, value in vars(self).items() if value is not None}
        del said["words"]
        tiers = [
            {"type": "fs", "root_dir": "/", "direct_io": True} | dataclasses.asdict(tier)
            for tier in self.secondary_tiers
        ]
        return said | {"secondary_tiers": tiers}


@dataclass(frozen=True)
class OffloadSettings:
    """Off-load tiers of blis-2026-08."""

    kv_offload_config: KvOffloadConfig = setting(  # noqa: RUF009  # frozen
        KvOffloadConfig(), "tiers that KV blocks are off-loaded to: CPU memory, and storage behind it",
        words="a path, or the mapping below `kv_offload`; see [Off-load tiers](../how-to/offload.md)",
        option="YAML file of tiers for KV blocks, in place of --kv-cpu-blocks; blis-2026-08", metavar="FILE",
        is_found=True,
    )  # fmt: skip


# --- reading a file -------------------------------------------------------------------------------


def given_config(value: object, devices: Mapping[str, Any] = DEVICES) -> KvOffloadConfig:
    """Return the tiers that a setting's value describes: a mapping, or the path of a file that holds one.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed.
    """
    if isinstance(value, KvOffloadConfig):
        return value
    if _is_nothing(value):
        return KvOffloadConfig()
    section, place = section_of(value, "kv_offload_config", "kv_offload")
    if section is None:
        raise ConfigError(f"{value}: the block kv_offload is missing; begin the file with it")
    if not isinstance(value, Mapping):
        return config_of(section, place, devices)
    return config_of(section, place, devices, (*_KEYS, "per_block_bytes"), (*_TIER_KEYS, *RAMP))


def _is_nothing(value: object) -> bool:
    """Return whether a value is the saved form of a configuration without off-load tiers."""
    if not isinstance(value, Mapping) or value.get("cpu_bytes_to_use") != 0:
        return False
    return value.items() <= vars(KvOffloadConfig()).items()


def config_of(
    section: object,
    place: str,
    devices: Mapping[str, Any] = DEVICES,
    keys: Collection[str] = _KEYS,
    tier_keys: Collection[str] = _TIER_KEYS,
) -> KvOffloadConfig:
    """Return the tiers in the mapping under the file's key `kv_offload`.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    said = given_keys(section, place, keys)
    if "cpu_bytes_to_use" not in said:
        raise ConfigError(
            f"{place}.cpu_bytes_to_use is missing; give the bytes of CPU memory for KV blocks"
        )
    wholes = (
        *("cpu_bytes_to_use", "block_size", "blocks_per_chunk", "tokens_per_hash"),
        "per_block_bytes",
    )
    whole = {name: _count(said, name, place) for name in wholes if name in said}
    if "block_size" in whole and "blocks_per_chunk" in whole:
        raise ConfigError(
            f"{place}: block_size and blocks_per_chunk say the same; give one of them"
        )
    # 0 and 1 change nothing: tiers store every block at once
    value_at(said.get("store_threshold", 0), f"{place}.store_threshold", int, 0, 1)
    # arc has no rule yet, and BLIS ends with an error
    chosen_at(said.get("eviction_policy") or "lru", f"{place}.eviction_policy", "lru")
    for name in ("offload_prompt_only", "self_describing_kv_events", "saves_prefill"):
        value_at(said.get(name, True), f"{place}.{name}", bool)
    tiers = said.get("secondary_tiers", ())
    if not isinstance(tiers, list | tuple) or len(tiers) > MOST_TIERS:
        raise ConfigError(
            f"{place}.secondary_tiers: got {shortened(tiers)}, allowed is a list of at most {MOST_TIERS}"
        )
    return KvOffloadConfig(
        whole["cpu_bytes_to_use"],
        whole.get("block_size"),
        whole.get("blocks_per_chunk"),
        said.get("offload_prompt_only", True),
        said.get("saves_prefill", False),
        tuple(
            _tier(mapping(tier, at, tier_keys), at, devices)
            for tier, at in (
                (tier, f"{place}.secondary_tiers[{n}]") for n, tier in enumerate(tiers)
            )
        ),
        whole.get("per_block_bytes"),
        {
            name: said[name]
            for name in ("tokens_per_hash", "self_describing_kv_events")
            if name in said
        }
        | {"secondary_tiers": [{**tier} for tier in tiers]},
    )


def _tier(entry: Mapping[str, Any], place: str, devices: Mapping[str, Any]) -> SecondaryTier:
    said = {name: value for name, value in entry.items() if value not in (None, "")}
    for name in ("type", "root_dir"):
        if not isinstance(said.get(name), str) or not said[name]:
            raise ConfigError(f"{place}.{name} is missing; give {_EXAMPLES[name]}")
    chosen_at(said["type"], f"{place}.type", "fs")
    if "direct_io" not in said:
        raise ConfigError(
            f"{place}.direct_io is missing; true: past the page cache, false: through it, which may take other times"
        )
    for name in ("direct_io", "enable_kv_events"):
        value_at(said.get(name, True), f"{place}.{name}", bool)
    chosen_at(said.get("locality", "LOCAL"), f"{place}.locality", "LOCAL", "REMOTE")
    threads = {
        name: _count(said, name, place)
        for name in ("n_read_threads", "n_write_threads")
        if name in said
    }
    device = _device(said.get("device_class"), said["direct_io"], place, devices)
    numbers = device | {
        name: number_at(said[name], f"{place}.{name}") for name in (*PHYSICS, *RAMP) if name in said
    }
    missing = [name for name in PHYSICS if name not in numbers]
    if missing:
        raise ConfigError(
            f"{place}: {', '.join(missing)} missing; give device_class, or {', '.join(PHYSICS)}"
        )
    for name, number in numbers.items():
        number_at(number, f"{place}.{name}", 0, math.inf, excludes_low=name in PHYSICS[:2])
    depth = int(numbers.pop("saturation_queue_depth", 1))
    rest: dict[str, Any] = numbers | threads
    return SecondaryTier(**rest, saturation_queue_depth=depth)


_EXAMPLES = {"type": "fs", "root_dir": "a folder, which is not looked at"}


def _device(
    name: object, is_direct: bool, place: str, devices: Mapping[str, Any]
) -> dict[str, float]:
    """Return the numbers of a device class; unless `is_direct`, its page-cache numbers replace the direct ones."""
    if name is None:
        return {}
    if name not in devices:
        raise ConfigError(
            f"{place}.device_class: {shortened(name)} is unknown; {choices(str(name), sorted(devices))}"
        )
    at = f"kv_offload_devices.{name}"
    entry = mapping(devices[str(name)], at, (*PHYSICS, *RAMP, *_BUFFERED))
    said = {
        key: number_at(value, f"{at}.{key}") for key, value in entry.items() if value is not None
    }
    direct = {key: value for key, value in said.items() if key not in _BUFFERED}
    if is_direct:
        return direct
    start = len("buffered_")
    return direct | {key[start:]: value for key, value in said.items() if key in _BUFFERED}


def _count(said: Mapping[str, Any], name: str, place: str) -> int:
    return whole_at(said[name], f"{place}.{name}", 1, 2**62)


# --- headers of traces ----------------------------------------------------------------------------


def header_of(offload: KvOffloadConfig, block_size: int, num_bytes: int) -> dict[str, Any]:
    """Return the off-load tiers as BLIS writes them into a trace's header, with device classes resolved, if any.

    Args:
        offload: the tiers.
        block_size: tokens of a KV block on the GPU.
        num_bytes: bytes of such a block.
    """
    if not offload.cpu_bytes_to_use:
        return {}
    words, usual = offload.words, {"block_size": block_size, "tokens_per_hash": block_size}
    said: dict[str, Any] = {
        "cpu_bytes_to_use": offload.cpu_bytes_to_use,
        "per_block_bytes": num_bytes,
        "block_size": words.get("block_size", usual["block_size"]),
        "blocks_per_chunk": 1,
        "tokens_per_hash": words.get("tokens_per_hash", usual["tokens_per_hash"]),
        "eviction_policy": "lru",
        "offload_prompt_only": offload.offload_prompt_only,
        "self_describing_kv_events": words.get("self_describing_kv_events", False),
    }
    rows: list[Mapping[str, Any]] = words.get("secondary_tiers") or [{}] * len(
        offload.secondary_tiers
    )
    tiers = [_row(tier, row) for tier, row in zip(offload.secondary_tiers, rows, strict=True)]
    return said | ({"secondary_tiers": tiers} if tiers else {})


def _row(tier: SecondaryTier, words: Mapping[str, Any]) -> dict[str, Any]:
    usual: dict[str, Any] = {
        **{
            "type": "fs",
            "root_dir": "/",
            "n_read_threads": 16,
            "n_write_threads": 16,
            "locality": "",
        },
        **{"enable_kv_events": False, "direct_io": True, "device_class": ""},
    }
    given = {name: words[name] for name in usual if words.get(name) is not None}
    row = usual | given | dataclasses.asdict(tier)
    return {name: value for name, value in row.items() if value != ""}


def of_header(block: Mapping[str, Any], place: str) -> KvOffloadConfig:
    """Return the tiers in a trace's header; the header's numbers are used, and its device class names are ignored.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    tiers = [
        {name: value for name, value in mapping(tier, place).items() if name != "device_class"}
        for tier in block.get("secondary_tiers") or ()
    ]
    chunk = {name: block.get(name) for name in ("block_size", "blocks_per_chunk")}
    if chunk["blocks_per_chunk"] not in (1, None):
        raise ConfigError(
            f"{place}: {chunk['blocks_per_chunk']} blocks per chunk have no rule yet, and BLIS ends with an error"
        )
    said = {name: value for name, value in block.items() if name not in chunk}
    made = given_config({**said, "secondary_tiers": tiers})
    words = {name: block[name] for name in block if name not in ("cpu_bytes_to_use",)}
    return dataclasses.replace(made, words=words)


# --- what follows for a cluster -------------------------------------------------------------------


def has_tiers(config: ClusterConfig) -> bool:
    """Return whether KV blocks are off-loaded."""
    return config.kv_offload_config.cpu_bytes_to_use > 0


def block_bytes(config: ClusterConfig) -> int:
    """Return the bytes of a KV block on all GPUs of one instance, under the cluster's tensor parallelism."""
    if config.kv_offload_config.per_block_bytes is not None:
        return config.kv_offload_config.per_block_bytes
    served = deployment(config, config.hardware, config.tp, config.dp)
    return int(kv_bytes_per_token(served) * config.block_size_in_tokens)


def cpu_capacity(config: ClusterConfig) -> int:
    """Return the KV blocks that fit into each instance's CPU memory; 0 if nothing is off-loaded."""
    return (
        config.kv_offload_config.cpu_bytes_to_use // block_bytes(config) if has_tiers(config) else 0
    )


def check(config: ClusterConfig) -> None:
    """Refuse off-load tiers where their effect is not defined.

    Raises:
        ConfigError: the revision has none, a size does not fit, or another configured mechanism is incompatible with
            tiers.
    """
    for problem in _problems(config) if config.kv_offload_config != KvOffloadConfig() else ():
        raise ConfigError(f"kv_offload_config: {problem}")


def _problems(config: ClusterConfig) -> Iterator[str]:
    offload, size = config.kv_offload_config, config.block_size_in_tokens
    if not config.is_august:
        yield "is part of the revision blis-2026-08 alone; take the profile blis-2026-08, or leave it out"
    if config.kv_cpu_blocks > 0 or any(
        (group.kv_cpu_blocks or 0) > 0 for group in config.instances
    ):
        yield "kv_cpu_blocks is given too, which is another kind of CPU tier; give one of them"
    if offload.block_size is not None and offload.block_size % size:
        yield f"block_size {offload.block_size} is no multiple of the {size} tokens of a KV block; give {size}"
    chunk = (
        (offload.block_size or size) // size
        if offload.blocks_per_chunk is None
        else offload.blocks_per_chunk
    )
    if chunk != 1:
        yield (
            f"{chunk} blocks per chunk have no rule yet, and BLIS ends with an error; leave block_size out, or give "
            f"{size}"
        )
    if cpu_capacity(config) < 1:
        yield (
            f"cpu_bytes_to_use {offload.cpu_bytes_to_use} is less than the {block_bytes(config)} bytes of one KV "
            "block; give more"
        )
