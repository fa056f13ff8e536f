"""What is not there: commands and options of BLIS that this program lacks (exit code 3), and groups of packages."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from blis_jax.errors import UnsupportedError
from blis_jax.policies.their_names import NOT_HERE, SETTINGS

_REAL = "BLIS's observe measures a real server, and this program measures none; leave it out"
_AGREEMENT = (
    "BLIS's calibrate compares a simulated run with a measured one, and this calibrate fits coefficients; "
    "blis-jax predict shows predictions against measured runs"
)
_OF_OBSERVE = (
    "api-format", "api-key", "itl-output", "kv-metrics-url", "no-streaming", "prewarm-duration", "record-itl",
    "rtt-ms", "scrape-kv-metrics", "server-type", "server-url", "unconstrained-output", "vllm-commit",
    "warmup-requests",
)  # fmt: skip
_OF_CALIBRATE = (
    "adapter-mape-threshold", "adapter-reference", "hit-rate-tolerance-pp", "itl-data", "network-bandwidth-mbps",
    "network-rtt-us", "report", "sim-metrics", "sim-metrics-blind", "sim-results", "slo-e2e", "slo-itl", "slo-ttft",
    "trace-data", "trace-header", "ttft-mape-threshold",
)  # fmt: skip
_OF_COMMAND = {"calibrate": dict.fromkeys(_OF_CALIBRATE, _AGREEMENT)}
_COMMANDS = {"observe": _REAL.removesuffix("; leave it out")}


_SETTING = "a setting belongs to an arm; write ARM:KEY=VALUE, several with semicolons"
_OF_STRATEGY = (
    "a setting belongs to the strategy; write STRATEGY:KEY=VALUE, several with semicolons"
)
_ONE_EACH = f"{_SETTING}, and an ARM for each value; blis-jax sweep has --set and --grid"
_SIZED = "the number is what is looked for; --max-instances bounds it"
_OF_STUDY = {
    "set": _OF_STRATEGY,
    "grid": _OF_STRATEGY,
    "targets": "they are the strategy file's",
    "coefficients-from": "give alpha_coeffs and beta_coeffs in the strategy file",
}
# What other commands have and these do not: what to do instead, by command and option.
_INSTEAD: dict[str, dict[str, str]] = {
    "run": {
        "strategy": "run takes a cluster by its settings; blis-jax sweep STRATEGY runs a strategy",
        "seeds": "a run has one --seed; blis-jax sweep runs many",
        "set": "each setting is an option of its own here, see --help-all",
        "grid": "blis-jax sweep has grids of settings",
        "targets": "give --slo-ttft, --slo-itl or --slo-e2e, such as --slo-ttft critical=100ms",
    },
    "compare": {"set": _ONE_EACH, "grid": _ONE_EACH},
    "ablate": {"set": _ONE_EACH, "grid": _ONE_EACH},
    "select": {
        "set": _ONE_EACH,
        "grid": _ONE_EACH,
        "trace": "a choice adds seeds until it is sure, and a trace has none; blis-jax compare --trace ranks arms",
    },
    "capacity": {
        "instances": _SIZED,
        "num-instances": _SIZED,
        "set": _SETTING,
        "hardware": "give --gpus A,B,…",
    },
    "curve": {
        "trace": "a curve needs many rates, and a trace has its own; blis-jax compare and capacity take one",
        "targets": "a curve shows all latencies; blis-jax capacity asks for targets",
        "set": _SETTING,
    },
    "recommend": {
        "model": "give the model as a word: recommend MODEL GPU",
        "hardware": "give the GPU as a word: recommend MODEL GPU",
        "instances": _SIZED,
        "num-instances": _SIZED,
        "set": _SETTING,
        "coefficients-from": "a fit is of one server, and servers are compared here; blis-jax capacity takes it",
    },
    "robustness": {
        "set": _SETTING,
        "grid": "each axis is an option of its own, such as --rate 100,200 --design grid",
        "coefficients-from": "the cost of a step is an axis here; give --step-constant",
    },
    "sensitivity": {
        **_OF_STUDY,
        "report": "its page, summary.md, lies beside its figures in the folder of --output",
    },
    "optimize": _OF_STUDY,
    "dataset": {
        **_OF_STUDY,
        "trace": "a data set is drawn on many seeds, and a trace has none; optimize and sensitivity take one",
    },
    "gradient": {
        "set": _SETTING,
        "grid": _SETTING,
        "targets": "name what is meant with --metrics, such as ttft_p99_ms",
    },
}


_LENGTHS = "lengths are --prompt-tokens and --output-tokens with --workload distribution, or a workload file's laws"
_PACES = (
    "a workload file says how requests arrive: arrival {process, cv} and lifecycle windows of its clients (a "
    "burstiness b is process gamma with cv 1 ÷ √b)"
)
_ANYWHERE = {
    **dict.fromkeys(("random-input-len", "random-output-len", "random-range-ratio", "ignore-eos"), _LENGTHS),
    **dict.fromkeys(("burstiness", "ramp-up-strategy", "ramp-up-start-rps", "ramp-up-end-rps", "rate-type"), _PACES),
    "seed": "--seeds N is how many seeds there are, and --first-seed the first of them",
    "num-warmups": "nothing has to warm up here; --window leaves out a beginning where a command has it",
    "goodput": "limits are --slo-ttft, --slo-itl, --slo-e2e of run, and --targets of studies",
}  # fmt: skip
_BY_WHAT_CAME = "which runs come next depends on those before"
_WITH_PARTS = (
    "sweep, compare, ablate, robustness, sensitivity, dataset, ledger add and replay, and papers that simulate have "
    "parts, and --scheduler makes the runs of every command on many machines"
)
_NO_PARTS = dict.fromkeys(
    ("capacity", "curve", "optimize", "recommend", "router_search", "select"), _BY_WHAT_CAME
)


def elsewhere(name: str, command: str) -> str | None:
    """Return advice on what replaces an option of another command or program; None if there is none."""
    last = command.replace(".", " ").split()[-1]
    if name == "part":
        why = _NO_PARTS.get(last, "this command has none")
        return f"{why}; {_WITH_PARTS}"
    of_command = _INSTEAD.get(last, {})
    ours = SETTINGS.get(name.replace("-", "_"), name).replace("_", "-")
    of_servers = NOT_HERE.get(name.removeprefix("no-").replace("-", "_"))
    return of_command.get(name) or of_command.get(ours) or _ANYWHERE.get(name) or of_servers


def refuse_option(name: str, command: str) -> None:
    """Refuse an option that BLIS has and `command`, such as `blis-jax run`, lacks; ignore any other name.

    Raises:
        UnsupportedError: BLIS has the option.
    """
    known = dict.fromkeys(_OF_OBSERVE, _REAL)
    known |= _OF_COMMAND.get(command.replace(".", " ").split()[-1], {})
    if name in known:
        raise UnsupportedError(f"--{name} is not supported: {known[name]}")


def refuse_command(name: str) -> None:
    """Refuse a command that BLIS has and this program lacks; ignore any other name.

    Raises:
        UnsupportedError: BLIS has the command.
    """
    if name in _COMMANDS:
        raise UnsupportedError(f"{name} is not supported: {_COMMANDS[name]}")


# --- the optional groups of packages: what each holds, and which commands ask for it --------------


class Extra(NamedTuple):
    """An optional group, `pip install 'blis-jax[NAME]'`."""

    name: str
    modules: tuple[str, ...]
    needed_for: str

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the modules of this group that are not installed."""
        return tuple(module for module in self.modules if importlib.util.find_spec(module) is None)


EXTRAS = (
    Extra("surrogate", ("orbax",), "surrogate train, predict, coverage, report"),
    Extra("export", ("h5netcdf", "h5py"), "outputs that end in .nc"),
    Extra("parquet", ("pyarrow",), "traces in Parquet"),
    Extra("evolve", ("tree_sitter", "tree_sitter_go"), "evolve: routing functions in Go"),
    Extra("distributed", ("distributed",), "--scheduler: runs on other processes and machines"),
    Extra("peers", ("vidur",), "benchmarks.peers: other simulators"),
    Extra("promote", ("go",), "promote: generated Go is compiled and run"),
    Extra("gpu", ("jax_cuda13_plugin",), "sweep --device gpu"),
    Extra("notebooks", ("jupytext", "nbclient", "ipykernel"), "the notebooks"),
)


def advice_on(module: str | None) -> str | None:
    """Return a sentence on what to install for a missing module; None if no optional group has it."""
    top = (module or "").split(".")[0]
    for extra in EXTRAS:
        if top in extra.modules:
            return f"{top} is not installed; pip install 'blis-jax[{extra.name}]'"
    return None
