"""llm-d clusters in a closed loop: layouts of instances or of pools at several concurrencies, all figures in a row."""

from __future__ import annotations

import re
from collections.abc import Sequence

from blis_jax.errors import ConfigError
from blis_jax.latency.model_description import shipped_models
from papers.real_servers.predict.scene import (
    ClosedLoad,
    RealServer,
    Row,
    Scene,
    ServerPool,
    Unit,
    gpu_name,
    unit_for_each,
    whole,
)

NAME = "llmd_runs"
COLUMNS = ("model", "hw", "arch", "config", "isl", "osl", "conc")
VALUES = ("req_s", "tok_s", "ttft_mean", "ttft_p50", "tpot", "e2e_mean", "e2e_p50")
FIGURES = {name: name for name in VALUES} | {"tpot": "tpot_mean"}
MAX_NUM_SEQS = 1024
BATCHED_TOKENS = 8192
MEMORY_SHARE = 0.93  # with it, as many requests fit as these servers held
_EQUAL = re.compile(r"(\d{1,4}) TP(\d{1,4})")
_POOLS = re.compile(r"\d+: (\d{1,4})P-TP(\d{1,4}) (\d{1,4})D-TP(\d{1,4})")


def units(rows: Sequence[Row]) -> list[Unit]:
    """Return one simulation for each row."""
    return unit_for_each(rows, scene_of, FIGURES)


def scene_of(row: Row) -> Scene:
    """Return the cluster of a row and its load.

    Raises:
        ConfigError: its layout or GPU is not known.
    """
    tp, number, pools = layout_of(str(row["config"]).strip(), str(row["arch"]))
    server = RealServer(
        full_name(str(row["model"])),
        gpu_name(row["hw"]),
        tp,
        number,
        max_num_running_reqs=MAX_NUM_SEQS,
        max_num_scheduled_tokens=BATCHED_TOKENS,
        memory_utilization=MEMORY_SHARE,
        pools=pools,
    )
    # the benchmark sends its first prompt before it begins; the router finds the same instance again, or there is one
    is_cached = bool(pools) or number == 1
    load = ClosedLoad(
        whole(row, "conc"), whole(row, "isl"), whole(row, "osl"), first_is_cached=is_cached
    )
    return Scene(server, load)


def full_name(model: str) -> str:
    """Return the model with its owner: that of the shipped model of this name, else Meta."""
    if "/" in model:
        return model
    owners = [shipped.rpartition("/") for shipped in shipped_models()]
    known_owners = [owner for owner, _, name in owners if name == model.lower()]
    return f"{known_owners[0] if known_owners else 'meta-llama'}/{model}"


def layout_of(text: str, arch: str) -> tuple[int, int, tuple[ServerPool, ...]]:
    """Return TP, number of instances and pools of a layout, such as `4 TP2` and `3: 2P-TP4 1D-TP8`.

    Raises:
        ConfigError: it is not of these forms.
    """
    if (equal := _EQUAL.fullmatch(text)) and arch == "aggregated":
        return int(equal[2]), int(equal[1]), ()
    if (split := _POOLS.fullmatch(text)) and arch == "disaggregated":
        pools = (
            ServerPool("prefill", int(split[1]), int(split[2])),
            ServerPool("decode", int(split[3]), int(split[4])),
        )
        return int(split[4]), int(split[1]) + int(split[3]), pools
    raise ConfigError(
        f"layout {text!r} ({arch}) is not known; use '4 TP2' with aggregated, and "
        "'3: 2P-TP4 1D-TP8' with disaggregated"
    )
