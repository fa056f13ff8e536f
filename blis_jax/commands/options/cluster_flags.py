"""The options about the cluster and its policies: one option for each setting, and options that set several at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from blis_jax.cluster.adapters import AdapterSettings
from blis_jax.cluster.config import FIELDS, POLICY_NAMES, SCORER_NAMES
from blis_jax.cluster.machines import Machines, MemorySettings, PoolSettings
from blis_jax.cluster.offload_tiers import OffloadSettings
from blis_jax.cluster.router import BatchSettings, FlowSettings, RouterSettings
from blis_jax.cluster.settings import DeclaredSetting, declared_in
from blis_jax.cluster.speculation import SpeculativeSettings
from blis_jax.commands.help import HIDDEN, USUAL_SETTINGS
from blis_jax.commands.options import CommandOptions, option
from blis_jax.commands.parser import Flag, Parser
from blis_jax.commands.values import OneOf, at_least, number, numbers, truth, whole
from blis_jax.core.kinds import GATEWAY, INSTANCE, KINDS, MEMORY
from blis_jax.errors import as_option
from blis_jax.latency.registry import MODELS
from blis_jax.policies import registry
from blis_jax.policies.their_names import first_name, names_of

MANY = 7  # names that help does not list
MOST_SLOTS = 8192  # of an instance

MODEL_FLAGS = (
    Flag("model-config-folder", str, None, "DIR", "the folder of --model-config, under the name that BLIS has for "
         "it"),
    Flag("hardware-config", str, None, "FILE", "JSON file of BLIS that describes GPUs, in place of the shipped ones, "
         "also for --hardware FILE:GPU; blis-2026-08, and --roofline"),
    Flag("roofline", truth, False, "BOOL", "step times from the sizes of model and GPU as BLIS of February 2026 "
         "computes them; its --hardware and --tp are needed"),
    Flag("defaults-filepath", str, None, "FILE", "defaults.yaml of BLIS: GPU and tp of models, coefficients of "
         "trained-physics, presets; descriptions of models and GPUs beside it count too; blis-2026-08"),
    Flag("enable-expert-parallel", truth, False, "BOOL", "vLLM's option of models with experts; as in BLIS it "
         "changes no step time of trained-physics"),
    Flag("vllm-version", str, "", "V", "vLLM version of the fit; the model's default"),
    Flag("coefficients-from", str, None, "FIT", "result of calibrate: its coefficients, and its server "
         "where no option says otherwise"),
)  # fmt: skip
ADAPTER_FLAGS = (
    Flag("lora-load-base-latency-us", number, None, "US", "µs to load an adapter, beside the time for its bytes; if "
         "not given, that of --lora-config, else 1500"),
    Flag("lora-load-bandwidth-bytes-us", number, None, "X", "bytes of an adapter loaded per µs; if not given, that of "
         "--lora-config, else 2e6"),
    Flag("lora-footprint-bytes-per-rank", number, None, "BYTES", "bytes of an adapter per rank; if not given, that of "
         "--lora-config, else 2e6"),
    Flag("lora-scorer-weight", number, None, "X", "put the scorer lora-affinity with this weight behind those of "
         "weighted routing"),
)  # fmt: skip
POOL_FLAGS = (
    Flag("policy-config", str, None, "FILE", "policy file of BLIS: admission, routing, scheduler, priority; of "
         "blis-2026-08 also preemption, node pools, autoscaler; options that are given count before it"),
    Flag("model-autoscaler-interval-us", number, None, "US", "time between two ticks of the autoscaler of "
         "blis-2026-08, 0: none; the policy file's if not given"),
)  # fmt: skip


# --- the reference's options about the cluster and its policies -----------------------------------


def policy_numbers(text: str) -> tuple[tuple[str, float], ...]:
    """Read `routing.candidates=3,scorer.Mine.gain=0.5` as pairs of name and number."""
    pairs = []
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        pairs.append((name.strip(), number(value.strip())))
    return tuple(pairs)


# --- an option from a declaration -----------------------------------------------------------------

_READERS: dict[str, Callable[[str], Any]] = {
    "int": whole,
    "float": number,
    "bool": truth,
    "tuple[float, float, float]": numbers,
    "tuple[float, ...]": numbers,
    "tuple[tuple[str, float], ...]": policy_numbers,
}
_METAVARS = {"int": "N", "float": "X", "bool": "BOOL", "str": "NAME"}


def flag_of(name: str) -> Flag:
    """Return the option for a setting of the cluster."""
    kind, declared = str(FIELDS[name].type), _declared(name)
    is_time = kind == "int" and declared.unit == "µs"
    others = [word for word in (name, *names_of(name)) if word != first_name(name)]
    also = f" (also {as_option(others[0])})" if others else ""
    text = declared.option or declared.meaning
    return Flag(
        name.replace("_", "-"),
        _READERS.get(kind, str),
        declared.shown if declared.is_found else FIELDS[name].default,
        declared.metavar or ("US" if is_time else _METAVARS[kind]),
        text + also if name not in POLICY_NAMES else text,
    )


def _declared(name: str) -> DeclaredSetting:
    declared: DeclaredSetting = FIELDS[name].metadata["setting"]
    return declared


def _flags(names: Iterable[str]) -> tuple[Flag, ...]:
    return tuple(flag_of(name) for name in names)


def _policies(places: Collection[str]) -> tuple[Flag, ...]:
    """Return the options that name policies which decide at these places, then those of the decode pool's router."""
    kinds = [kind for kind in KINDS.values() if kind.place in places]
    of_decode = [kind.decode_setting for kind in kinds if kind.is_router]
    return _flags([*(kind.setting for kind in kinds), *of_decode])


def _numbers(places: Collection[str]) -> tuple[Flag, ...]:
    """Return the options for the numbers of the package's policies which decide at these places."""
    known = registry.settings().items()
    return _flags(name for name, number in known if KINDS[number.kind].place in places)


# --- all of them ----------------------------------------------------------------------------------

_PREEMPTION_POLICY = Flag(
    "preemption-policy",
    OneOf("fcfs", "priority"),
    None,
    "NAME",
    "priority: the same as --slo-preemption true, under the name of blis-2026-08; fcfs: false",
)
_NO_CACHING = Flag(
    "no-enable-prefix-caching",
    truth,
    None,
    "BOOL",
    "the same as --enable-prefix-caching false, under vLLM's name",
)
FLOW_FLAGS = _flags(declared_in(FlowSettings))
_GROUPS = (
    (
        "machines",
        (
            *_flags(name for name in declared_in(Machines) if name != "node_pools"),
            *MODEL_FLAGS,
        ),
    ),
    (
        "KV memory",
        (*_flags([*declared_in(MemorySettings), *declared_in(OffloadSettings)]), _NO_CACHING),
    ),
    ("LoRA adapters of blis-2026-08", (*_flags(declared_in(AdapterSettings)), *ADAPTER_FLAGS)),
    (
        "admission and routing",
        (
            *_policies((GATEWAY, MEMORY)),
            *_flags(declared_in(RouterSettings)),
            *_numbers((GATEWAY, MEMORY)),
            flag_of("policy_numbers"),
        ),
    ),
    ("the gateway's queue (flow control)", FLOW_FLAGS),
    (
        "priority and order of the wait queue",
        (*_policies((INSTANCE,)), *_numbers((INSTANCE,))),
    ),
    ("batches", (*_flags(declared_in(BatchSettings)), _PREEMPTION_POLICY)),
    ("drafted tokens (speculative decoding)", _flags(declared_in(SpeculativeSettings))),
    (
        "pools and policy files of blis-2026-08",
        (*_flags(declared_in(PoolSettings)), *POOL_FLAGS),
    ),
)
CLUSTER_FLAGS = tuple(flag for _, flags in _GROUPS for flag in flags)


def add_cluster_flags(parser: Parser) -> None:
    """Add all options about the cluster and its policies, in groups."""
    choices = {name.replace("_", "-"): names for name, names in POLICY_NAMES.items()}
    for pool in ("", "decode-", "prefill-"):
        choices[f"{pool}routing-scorers"] = SCORER_NAMES
    choices["latency-model"] = tuple(MODELS)
    for title, flags in _GROUPS:
        parser.add_flags(title, [_with_choices(flag, choices) for flag in flags])
        parser.hide({flag.name for flag in flags if flag.help != HIDDEN} - USUAL_SETTINGS)


def _with_choices(flag: Flag, choices: Mapping[str, Sequence[str]]) -> Flag:
    names = choices.get(flag.name)
    if not names:
        return flag
    list_word = name_of(flag).removeprefix("decode_").removeprefix("prefill_")
    known = ", ".join(names) if len(names) < MANY else f"see `blis-jax policies {list_word}`"
    return flag._replace(help=f"{flag.help}: {known}, or path/to/file.py:Name")


class InstancesOption(CommandOptions, title="cluster"):
    """Instances of every arm."""

    instances: str | None = option(
        str, None, flag_of("instances").metavar,
        "YAML or JSON list of groups of instances, in place of what the strategies have",
    )  # fmt: skip


class SlotsOption(CommandOptions, title="engine"):
    """The size of an instance in the program."""

    slots: int | None = option(
        at_least(1, most=MOST_SLOTS), None, "N", "requests that one instance can hold; determined if not given",
    )  # fmt: skip


def name_of(flag: Flag) -> str:
    """Return the name under which an option's value is parsed: its first spelling, with underscores."""
    return flag.name.partition("/")[0].replace("-", "_")
