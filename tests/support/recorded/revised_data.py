"""Recorded workloads of BLIS's revision of August 2026, with the command lines that drew them."""

import json
from itertools import pairwise

import numpy as np

from benchmarks.golden import committed
from blis_jax.workload.distribution import Distribution, GaussianLengths, preset
from blis_jax.workload.reference.distribution import TIMEOUT_US, as_spec
from blis_jax.workload.reference.generate import DrawnWorkload, drawn
from blis_jax.workload.spec import load_spec, override

REVISION = "blis-2026-08"
FOLDER = committed() / "blis_2026_08"
COMMANDS = json.loads((FOLDER / "commands.json").read_text())
CLOSED_LOOP = [name for name, command in COMMANDS.items() if command["closed_loop"]]
OPEN_LOOP = [name for name in COMMANDS if name not in CLOSED_LOOP]


def recorded(workload: str) -> dict[str, np.ndarray]:
    """The arrays of a recorded workload."""
    with np.load(FOLDER / "workloads" / f"{workload}.npz") as file:
        return dict(file)


def texts(arrays: dict[str, np.ndarray], name: str) -> list[str]:
    """A column of codes as the texts behind them, empty for none."""
    names = arrays[f"{name}_names"]
    return [str(names[code]) if code >= 0 else "" for code in arrays[name]]


def drawn_again(workload: str) -> DrawnWorkload:
    """The requests that the recorded command line describes."""
    words = COMMANDS[workload]["cli_args"]
    options = {name[2:]: value for name, value in pairwise(words) if name.startswith("--")}
    seed = int(options["seed"]) if "seed" in options else None
    if "workload-spec" in options:
        spec = load_spec(FOLDER / options["workload-spec"], REVISION)
        changes = {
            key: int(options[flag])
            for flag, key in (("num-requests", "num_requests"), ("horizon", "horizon"))
            if flag in options
        }
        return drawn(override(spec, **changes), seed)
    think_time_us = 1000 * int(options.get("think-time-ms", 0))
    pool = int(options.get("concurrency", 0))
    return drawn(as_spec(_distribution(options), None, pool, think_time_us), seed, TIMEOUT_US)


def _distribution(options: dict[str, str]) -> Distribution:
    rate = float(options.get("rate", 1))
    num_requests = int(options.get("num-requests", 100))
    if "workload" in options:
        return preset(options["workload"], rate, num_requests)

    def lengths(kind: str) -> GaussianLengths:
        name = f"{kind}-tokens"
        mean, stdev = options.get(name, 512), options.get(f"{name}-stdev", 256)
        return GaussianLengths(int(mean), int(stdev), 2, 7000)

    prefix_tokens = int(options.get("prefix-tokens", 0))
    return Distribution(rate, num_requests, prefix_tokens, lengths("prompt"), lengths("output"))
