"""Random files and folders that command lines of August name, and lines of `convert` and `compose`.

`REPOSITORY` in a word stands for BLIS's checkout.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.blis.workloads import GPUS, LLAMA, Draw, inference_perf, session_free

REPOSITORY = "REPOSITORY/"  # stands for BLIS's checkout
DEVICES = ("nvme_gen4", "nvme_gen3", "sata_ssd", "cpu_dram", "s3")
# of the package's default, each multiplied by a random number
ALPHA = (15563.2, 777.3, 45.9)
BETA = (0.152, 0.0, 1.36, 0.752, 32.1, 4.42, 126.0, 481.9, 0.0, 1.95, 0.752)


def converted(draw: Draw, path: Path) -> tuple[tuple[str, ...], list[str]]:
    """Draw a line of `compose` or `convert`, and write the files that it names; return the command and its words."""
    value, files = (
        draw.value,
        [path.with_suffix(f".{index}.yaml") for index in range(draw.value.randint(1, 3))],
    )
    kind = value.random()
    if kind < 0.3:
        for file in files:
            file.write_text(yaml.safe_dump(session_free(draw), sort_keys=False))
        return ("compose",), list(itertools.chain(*(("--from", str(file)) for file in files)))
    if kind < 0.5:
        name = value.choice(("chatbot", "contentgen", "summarization", "multidoc"))
        words = ["--name", name, "--rate", str(round(value.uniform(0.1, 90), 3))]
        return ("convert", "preset"), words
    if kind < 0.65:
        files[0].write_text(yaml.safe_dump(inference_perf(value)))
        return ("convert", "inference-perf"), ["--spec", str(files[0])]
    servegen(value, path.with_suffix(".servegen"))
    words = ["--path", str(path.with_suffix(".servegen"))]
    for name, values in SERVEGEN.items():
        words += [f"--{name}", str(value.choice(values))] if value.random() < 0.4 else []
    return ("convert", "servegen"), words


SERVEGEN: dict[str, tuple[object, ...]] = {
    "window-duration-seconds": (1, 60, 900),
    "drain-timeout-seconds": (0, 7, 600),
    "time": ("midnight", "morning", "afternoon"),
}


def servegen(value: random.Random, folder: Path) -> None:
    """Write a folder of ServeGen data: clients with windows on up to two days, some of them idle or without a fit."""
    folder.mkdir(exist_ok=True)
    reasons = value.random() < 0.3
    for number in range(value.choice((1, 3, 8, 14))):
        starts = [
            86400 * day + hours + 600 * at
            for day in range(value.randint(1, 2))
            for hours in (0, 28800, 50400)
            for at in range(3)
            if value.random() < 0.8
        ]
        if value.random() < 0.1:
            value.shuffle(starts)
        rows = [_window(value, start) for start in starts]
        rows = ["start,rate,cv,family,shape,scale", *rows] if value.random() < 0.1 else rows
        cells = value.choice((4, 5)) if value.random() < 0.1 else 6
        text = "".join(f"{','.join(row.split(',')[:cells])}\n" for row in rows)
        (folder / f"chunk-{number}-trace.csv").write_text(text)
        times = [0, *(time for time in (21600, 43200, 86400, 108000) if value.random() < 0.5)]
        windows = {str(time): _lengths(value, reasons) for time in times}
        (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(windows))


OF_AUGUST: dict[str, tuple[object, ...]] = {
    "window_duration_secs": (0, 1, 5, 60),
    "drain_timeout_secs": (0, 1, 600),
    "span_start": (600,),
}
OF_FEBRUARY: dict[str, tuple[object, ...]] = {
    "span_start": (0, 600, 28800),
    "span_end": (0, 1200, 30000, 200000),
}


def of_data(
    draw: Draw, workload: dict[str, Any], keys: dict[str, tuple[object, ...]], folder: Path
) -> dict[str, Any]:
    """Return some workload files with ServeGen data in place of their clients, the others as they are."""
    if not draw.has(0.08):
        return workload
    value, data = draw.value, {"path": str(folder)}
    servegen(value, folder)
    for name, values in keys.items():
        data |= {name: value.choice(values)} if value.random() < 0.4 else {}
    sources = ("clients", "cohorts", "inference_perf")
    kept = {name: part for name, part in workload.items() if name not in sources}
    return kept | {"servegen_data": data}


def _window(value: random.Random, start: int) -> str:
    rate = value.choice((0, 0.01, *[round(value.uniform(0, 40), 3)] * 4))
    family = value.choice((*("Gamma", "Weibull") * 8, "Poisson", ""))
    shape, scale = (
        round(value.uniform(0.1, 3), 4) if value.random() < 0.97 else 0 for _ in range(2)
    )
    second = value.choice((str(start), f"{start}.0"))
    return f"{second},{rate},{round(value.uniform(0, 4), 3)},{family},{shape},{scale}"


def _lengths(value: random.Random, reasons: bool) -> dict[str, str]:
    laws = {
        name: {
            value.randint(low, most): round(value.random(), 3) for _ in range(value.randint(1, 5))
        }
        for name, low, most in (("input_tokens", 1, 4000), ("output_tokens", 0, 900))
    }
    texts = {name: str(law) if value.random() < 0.9 else "{}" for name, law in laws.items()}
    if reasons:
        ratios = {str(value.randint(0, 100) / 100): round(value.random(), 3) for _ in range(3)}
        texts["reason_ratio"] = json.dumps(ratios)
    return texts


def defaults(draw: Draw, model: str, path: Path) -> tuple[list[str], tuple[str, ...]]:
    """Write a defaults file with coefficients and classes of storage whose speed depends on the load and on chance.

    Returns:
        The words that name it and what else BLIS looks for in its checkout, and the names of the classes.
    """
    value, devices = draw.value, dict[str, dict[str, float]]()
    for name in ("ramp", "jitter", "both"):
        device: dict[str, float] = {
            "read_bandwidth": value.choice((90.5, 900.0, 4000.0)),
            "write_bandwidth": value.choice((80.0, 2500.0)),
            "base_latency": value.choice((0.0, 120.0, 2500.5)),
        }
        if name != "jitter":
            device["saturation_queue_depth"] = value.choice((1, 2, 4, 8))
            device["single_transfer_fraction"] = value.choice((0.25, 0.6, 1.0))
        if name != "ramp":
            device["latency_jitter_stddev"] = value.choice((0.05, 0.4, 1.5))
        buffered = {
            **{"read_bandwidth": 1800.0, "write_bandwidth": 950.5, "base_latency": 900.0},
            **{"saturation_queue_depth": 3, "single_transfer_fraction": 0.4},
            **({} if name == "ramp" else {"latency_jitter_stddev": 0.6}),
        }
        for key in value.sample([*buffered], value.randint(0, 3)):
            device[f"buffered_{key}"] = buffered[key]
        devices[name] = device
    alpha, beta = (
        [round(number * value.uniform(0.5, 1.5), 4) for number in numbers]
        for numbers in (ALPHA, BETA)
    )
    usual = {"GPU": value.choice(GPUS), "tensor_parallelism": value.choice((1, 2, 4))}
    document = {
        "defaults": {model: usual},
        "version": "0.0.1",
        "trained_physics_coefficients": {"alpha_coeffs": alpha, "beta_coeffs": beta},
        "kv_offload_devices": devices,
        "lora": {
            "load_base_latency_us": value.choice((0.5, 1500.0)),
            "load_bandwidth_bytes_us": value.choice((2e6, 30000.5)),
            "footprint_bytes_per_rank": value.choice((2e6, 1000.0)),
        },
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    described = f"{REPOSITORY}model_configs/{model.partition('/')[2]}"
    words = ["--defaults-filepath", str(path), "--model-config-folder", described]
    return [*words, "--hardware-config", f"{REPOSITORY}hardware_config.json"], tuple(devices)


def adapters(draw: Draw, path: Path) -> tuple[str, ...]:
    """Write a file of LoRA adapters; return their names."""
    value, names = draw.value, [f"a{index}" for index in range(draw.shape.choice((1, 3, 8)))]
    based = {"base_model": LLAMA} if draw.has(0.2) and draw.has(0.5) else {}
    entries = [{"id": name, "rank": value.choice((4, 8, 16, 20, 64)), **based} for name in names]
    lora: dict[str, Any] = {"adapters": entries}
    lora |= {"adapter_capacity": value.randint(1, 4)} if draw.has(0.9) else {}
    if draw.has(0.3):
        lora["step_overhead_tiers"] = {8: {"k6": 0.05, "k7": 0.7}, 32: {"k6": 0.2, "k7": 1.3}}
    if draw.has(0.3):
        lora["load_base_latency_us"] = value.choice((0.0, 2500.5, 40000.0))
    path.write_text(yaml.safe_dump({"lora": lora}))
    return tuple(names)


def saturation(draw: Draw, path: Path) -> None:
    """Write a file with settings of the saturation detectors."""
    value = draw.value
    drift: dict[str, Any] = {
        "window_size_sec": value.choice((1, 2)),
        "min_windows": value.choice((1, 2, 5)),
        "warmup_windows": value.choice((0, 1)),
    }
    drain = sorted(round(value.uniform(0.05, 1), 2) for _ in range(2))
    others = {
        **{"peak_ratio": value.choice((0.8, 1.5)), "peak_ratio_band": value.choice((0, 0.5))},
        **{"confidence_ci": value.choice((0.5, 0.9)), "tail_windows": value.choice((0, 1, 4))},
        **{"saturated_drain_ratio": drain[0], "transient_drain_ratio": drain[1]},
    }
    drift |= {name: others[name] for name in others if value.random() < 0.4}
    limits = {"threshold_ms": value.choice((80.5, 900.0))}
    path.write_text(yaml.safe_dump({"threshold": limits, "backlog_drift": drift}))


def offload(draw: Draw, path: Path, devices: Sequence[str] = DEVICES) -> None:
    """Write a file of tiers for KV blocks, on storage of these classes."""
    value = draw.value
    block = 2 * 2**20  # bytes of 16 tokens of Llama 3.1 8B
    tiered: dict[str, Any] = {"cpu_bytes_to_use": value.choice((3, 20, 60, 200, 3000)) * block}
    tiers = []
    for _ in range(draw.shape.choice((0, 1, 1, 2))):
        tier: dict[str, Any] = {"type": "fs", "root_dir": "/kv", "direct_io": value.random() < 0.7}
        tier["device_class"] = value.choice(devices)
        tier |= {"locality": "REMOTE", "enable_kv_events": True} if value.random() < 0.2 else {}
        if value.random() < 0.3:
            tier |= {"read_bandwidth": value.choice((90.5, 900.0)), "base_latency": 2500.5}
        if value.random() < 0.4:
            tier |= {"n_read_threads": value.randint(1, 4), "n_write_threads": value.randint(1, 4)}
        tiers.append(tier)
    tiered |= {"secondary_tiers": tiers} if tiers else {}
    tiered |= {"offload_prompt_only": False} if draw.has(0.3) else {}
    if value.random() < 0.25:
        few = ({"blocks_per_chunk": 1}, {"tokens_per_hash": 64}, {"eviction_policy": "lru"})
        tiered |= value.choice(
            (*few, {"store_threshold": 1}, {"block_size": 16}, {"blocks_per_chunk": 2})
        )
        tiered |= {"self_describing_kv_events": True} if value.random() < 0.5 else {}
    path.write_text(yaml.safe_dump({"kv_offload": tiered}))
