"""The requests that all runs of a study serve: a workload's, by name or file, or a trace's, on seeds or windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from blis_jax.commands import cli
from blis_jax.commands.options import PlainSwitches, seed_options, trace_flags
from blis_jax.commands.options.seed_options import SeedOptions
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError, choices, closest
from blis_jax.files.input_files import shipped_names
from blis_jax.latency.model_description import beyond_context
from blis_jax.metrics.measure import Measure
from blis_jax.traces.source import STREAM, USUAL_SEEDS, TraceSource
from blis_jax.workload.remarks import ineffective_settings
from blis_jax.workload.source import FIRST_REVISION
from blis_jax.workload.spec import (
    WorkloadSpec,
    list_builtin,
    load_builtin,
    load_spec,
    override,
    parse_spec,
)
from sweeps.strategies.file import Strategy
from sweeps.strategies.space import space_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.statistics.sequential import StoppingRule
    from blis_jax.workload.source import RequestSource
    from sweeps.runs.options import ArmRequests
    from sweeps.strategies.arms import Arm


# --- workloads by their name, from a file, or of a strategy ---------------------------------------


FOLDER = "workloads"
WORKLOAD_PREFIX = "workload."  # of an axis that is a number of the workload


def list_own() -> tuple[str, ...]:
    """Return the names of the workloads of this package, without those of blis_jax."""
    return shipped_names("sweeps", FOLDER)


def list_workloads() -> tuple[str, ...]:
    """Return the names of all workloads, those of blis_jax first."""
    return (*list_builtin(), *list_own())


@lru_cache(maxsize=64)
def load_workload(name: str) -> WorkloadSpec:
    """Return the workload called `name`; ConfigError if neither package has it."""
    if name in list_builtin():
        return load_builtin(name)
    if name not in list_own():
        known = list_workloads()
        raise ConfigError(
            f"workload {name!r} is unknown; use one of {', '.join(known)}{closest(name, known)}"
        )
    file = resources.files("sweeps") / FOLDER / f"{name}.yaml"
    return parse_spec(file.read_text(encoding="utf-8"), file.name, None)


def workload_of(
    strategy: Strategy, num_requests: int | None = None, follows: bool = True
) -> WorkloadSpec:
    """Return the checked workload of a strategy; paths are relative to its file, else to the current folder."""
    where = f"{strategy.source}: workload"
    return workload_from(strategy.workload, where, strategy.folder, num_requests, follows)


def workload_from(
    given: str | Mapping[str, Any],
    where: str = "workload",
    folder: Path | None = None,
    num_requests: int | None = None,
    follows: bool = True,
) -> WorkloadSpec:
    """Return a workload given by its name, its file or its content; `where` begins error messages.

    A workload with users or sessions that wait for answers, or with fixed rates, is refused unless `follows`.
    """
    spec = _read(given, where, folder, None)
    if not follows and (spec.has_fixed_rates or spec.waits):
        _read(given, where, folder, FIRST_REVISION)  # which says what takes it
    return override(spec, num_requests=num_requests) if num_requests else spec


def _read(
    given: str | Mapping[str, Any], where: str, folder: Path | None, revision: str | None
) -> WorkloadSpec:
    if not isinstance(given, str):
        return parse_spec(yaml.safe_dump(dict(given)), where, revision)
    if given in list_workloads():
        return load_workload(given)
    return load_spec(_workload_path(given, where, folder or Path()), revision)


def workload_content(spec: RequestSource) -> dict[str, Any]:
    """Return a workload's content for a hash; with the definition of rates in its window, if it has a window."""
    window = Measure({}, spec.measure.warm_up_s, spec.measure.cool_down_s).window()
    rates = {"rates": window["rates"]} if "rates" in window else {}
    return spec.content() | rates


def _workload_path(given: str, where: str, folder: Path) -> Path:
    places = [folder / given, Path(given), folder / Path(given).name]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(
        f"{where}: {given!r} is neither a file, here or beside the strategy, nor a built-in workload, which "
        f"blis-jax workloads lists; {choices(given, list_workloads())}"
    )


# --- the requests of a study ----------------------------------------------------------------------


STREAMS = ("reference", "jax")
MOST_JAX_SEEDS = 2**32


@dataclass(frozen=True)
class StudyRequests:
    """The requests that every run serves: their source, and the numbers of the runs."""

    source: RequestSource
    seeds: tuple[int, ...]  # or windows of a trace, from 1 on
    stream: str  # who draws: reference or jax, or STREAM of a trace
    name: str = ""  # as the user calls it

    @property
    def trace(self) -> TraceSource | None:
        """Return the source if it is a trace."""
        return self.source if isinstance(self.source, TraceSource) else None

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the SLO classes, the most urgent first."""
        order = [name for name in CLASS_NAMES if name != "default"] + ["default"]
        return tuple(name for name in order if name in self.source.slo_classes)

    def content(self) -> dict[str, Any]:
        """Return all that figures depend on, by a name in words."""
        workload = workload_content(self.source)
        return {"workload": workload, "seeds": self.seeds, "stream": self.stream}

    def at_least(self, fewest: int, purpose: str) -> StudyRequests:
        """Return these requests; refuse fewer runs than the `purpose` needs."""
        check_count(self.seeds, fewest, purpose, self.stream)
        return self


def requests_of(
    options: SeedOptions,
    command: str,
    workload: Callable[[], tuple[WorkloadSpec, str]],
    configs: Sequence[ClusterConfig],
    usual: int | Sequence[int],
    *,
    rule: StoppingRule | None = None,
    usual_windows: int | None = None,
    allowed: Sequence[str] = (),
    follows: bool = True,
) -> StudyRequests:
    """Return the requests that options of seeds, of a stream and of a trace ask for, if the command has such options.

    Args:
        options: the command's options.
        command: the command's module, for remarks.
        workload: returns the workload and its name where there is no trace.
        configs: the configurations to run; for a trace that draws nothing, seeds matter only if these draw something.
        usual: the number of seeds, or the seeds, where none are given.
        rule: the stopping rule that adds seeds to the first ones.
        usual_windows: the number of windows of a trace where neither windows nor seeds are given.
        allowed: options that are valid with a trace, too, although they are about drawing requests.
        follows: whether requests of a trace wait for answers in the command's runs.

    Raises:
        ConfigError: options contradict each other, or there are no such seeds.
    """
    trace = trace_of(options, command, usual_windows, allowed, follows)
    seeds, stream = runs_of(options, command, trace, configs, usual, rule)
    if trace is not None:
        assert isinstance(options, StudyTrace)
        _note_context(options, command, trace, configs)
        return StudyRequests(trace, seeds, stream, options.trace or "")
    spec, name = workload()
    if spec.revision != FIRST_REVISION and stream == "jax":
        raise ConfigError(
            f"--rng jax: the clients of {name} are those of BLIS of August 2026, and its own streams alone draw them; "
            "leave --rng out"
        )
    if name.endswith((".yaml", ".yml")) and not _is_quiet(options):
        for remark in ineffective_settings(spec):
            cli.say(command, f"note: {name}: {remark}")
    return StudyRequests(spec, seeds, stream, name)


def _note_context(
    options: SeedOptions, command: str, trace: TraceSource, configs: Sequence[ClusterConfig]
) -> None:
    """Warn of models whose context is too short for some requests; August's revision drops or cuts these."""
    models = {(each.model, each.model_config) for each in configs if not each.is_august}
    rows = trace.trace.rows
    for name, file in sorted(models):
        remark = beyond_context(name, file, rows.input_len, rows.output_len)
        if remark is not None and not _is_quiet(options):
            cli.say(command, f"note: {remark}")


def trace_of(
    options: SeedOptions,
    command: str,
    usual_windows: int | None = None,
    allowed: Sequence[str] = (),
    follows: bool = True,
) -> TraceSource | None:
    """Return the trace that the options name, if any; arguments are those of `requests_of`."""
    if not isinstance(options, StudyTrace):
        return None
    return trace_flags.study_source(
        options, command, usual_windows=usual_windows, is_quiet=_is_quiet(options), allowed=allowed,
        follows=follows,
    )  # fmt: skip


def _is_quiet(options: SeedOptions) -> bool:
    return isinstance(options, PlainSwitches) and options.quiet


def runs_of(
    options: SeedOptions,
    command: str,
    trace: TraceSource | None,
    configs: Sequence[ClusterConfig],
    usual: int | Sequence[int],
    rule: StoppingRule | None = None,
) -> tuple[tuple[int, ...], str]:
    """Return the runs' numbers, and the stream that draws their requests; arguments are those of `requests_of`."""
    if trace is not None:
        return _seeds_of_trace(options, command, trace, configs, usual), STREAM
    stream = options.stream
    if isinstance(usual, int):
        usual = seed_options.FEWEST_SEEDS if rule is not None else usual
        seeds = seed_options.seeds_of(options, usual, stream)
    else:
        seeds = seed_options.given_seeds(options, stream) or tuple(usual)
    if rule is not None:
        seed_options.first_seeds(seeds, rule)
    check_seeds(seeds, stream)
    return seeds, stream


def _seeds_of_trace(
    options: SeedOptions,
    command: str,
    trace: TraceSource,
    configs: Sequence[ClusterConfig],
    usual: int | Sequence[int],
) -> tuple[int, ...]:
    """Return the numbers of a trace's runs; print a remark if the user asks for more runs than can differ."""
    of_options = seed_options.given_seeds(options)
    seeds = trace.seeds(of_options, configs, USUAL_SEEDS if isinstance(usual, int) else usual)
    if of_options is not None and len(of_options) > len(seeds) and not _is_quiet(options):
        cli.say(
            command,
            "note: nothing is drawn from a seed here, neither by the trace nor by a policy; "
            "one run of each strategy is made",
        )
    return seeds


def check_count(seeds: Sequence[int], fewest: int, purpose: str, stream: str) -> None:
    """Refuse fewer runs than the purpose needs."""
    if len(seeds) < fewest:
        runs = "run is" if len(seeds) == 1 else "runs are"
        option, more = "--seeds", "give more"
        if stream == STREAM:
            option, more = "--trace-windows", "cut the trace into more"
        raise ConfigError(
            f"{option}: {len(seeds)} {runs} too few {purpose}; {fewest} is the least: {more}"
        )


def workload_for(
    given: str | None,
    strategies: Sequence[Strategy],
    num_requests: int | None,
    option: str = "--workload",
    rate: float | None = None,
    follows: bool = True,
) -> tuple[WorkloadSpec, str]:
    """Return the workload that an option gives, else that of the first strategy, else `mixed`; with its name.

    The workload sends `rate` requests/s if `rate` is given; `follows` as in `workload_from`.
    """
    if given is not None:
        spec = workload_from(given, option, num_requests=num_requests, follows=follows)
        name = given
    elif not strategies:
        spec, name = workload_from("mixed", num_requests=num_requests), "mixed"
    else:
        first = strategies[0]
        name = first.workload if isinstance(first.workload, str) else f"that of {first.name}"
        spec = workload_of(first, num_requests or space_of(first).num_requests)
    if rate is None:
        return spec, name
    check_rate(spec, "--rate")
    if rate <= 0:
        raise ConfigError(f"--rate: got {rate:g}, allowed is above 0; give requests per second")
    if not math.isfinite(rate):
        raise ConfigError(
            f"--rate: got {rate:g}, allowed is a number of requests per second; for all at once, as a client with "
            "rate inf sends them, give one far above what the cluster carries, such as 100000"
        )
    return override(spec, aggregate_rate=rate), f"{name} at {rate:g} requests/s"


def check_rate(spec: WorkloadSpec, option: str) -> None:
    """Refuse a request rate for a workload that has its own, or of users, who send when they are answered."""
    if spec.has_fixed_rates:
        source = "servegen_data" if spec.servegen_data is not None else "inference_perf"
        raise ConfigError(
            f"{option}: the workload's rates are those of {source}, and no other rate changes them; leave it out, or "
            "give a workload with clients"
        )
    if not spec.has_rate:
        raise ConfigError(
            f"{option}: all clients of the workload keep a number of requests open and have no rate; change "
            "clients[].concurrency, which sweep --grid workload.clients.ID.concurrency=8,16 does"
        )


def workload_of_arms(options: ArmRequests, arms: Sequence[Arm]) -> tuple[WorkloadSpec, str]:
    """Return the workload of all arms, and its name; see `workload_for`."""
    strategies = strategies_of(arms)
    return workload_for(options.workload, strategies, options.num_requests, rate=options.rate)


def strategies_of(arms: Sequence[Arm]) -> list[Strategy]:
    """Return the files of the strategies that the arms come from."""
    return [arm.strategy for arm in arms if arm.strategy is not None]


def check_seeds(seeds: Sequence[int], stream: str) -> None:
    """Refuse seeds that the stream does not have."""
    if len(set(seeds)) != len(seeds):
        raise ConfigError("seeds: a seed is given twice; give each once")
    limit = MOST_JAX_SEEDS if stream == "jax" else 2**63
    for seed in seeds:
        if not 0 <= seed < limit:
            raise ConfigError(f"seeds: {seed} is out of range; seeds are 0 to {limit - 1}")
