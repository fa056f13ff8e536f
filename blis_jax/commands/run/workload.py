"""Where one run's requests come from: a workload file, the simple options or a record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.named_policies import draws
from blis_jax.commands.august_files import preset_of
from blis_jax.commands.options import trace_flags
from blis_jax.commands.run.flags import MOST_SEEDS, STREAM, WORKLOAD_MODES, RunOptions
from blis_jax.core.types import NO_HORIZON
from blis_jax.errors import ConfigError, as_option, closest
from blis_jax.workload.distribution import (
    DISTRIBUTION_SEED,
    PRESETS,
    Distribution,
    GaussianLengths,
    RevisedDistribution,
)
from blis_jax.workload.reference.distribution import as_spec
from blis_jax.workload.reference.generate import DrawnWorkload, drawn
from blis_jax.workload.remarks import ineffective_settings
from blis_jax.workload.source import FIRST_REVISION, REVISED, REVISIONS
from blis_jax.workload.spec import MeasureSpec, list_builtin, load_builtin, load_spec, override

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.cli import Notes
    from blis_jax.workload.spec import WorkloadSpec

RECORDED = "recorded"  # stream of requests that are not drawn
TIMEOUT_S = 300  # of requests that options describe


@dataclass(frozen=True)
class Source:
    """The source of the requests: one of `spec`, `distribution` and `path`, with the entries for results files."""

    title: str
    stream: str
    policy_seed: int  # random policies draw from it: the seed of the requests, or of the options
    seed: int | None = None
    spec: WorkloadSpec | None = None
    distribution: Distribution | None = None
    timeout_us: int | None = None  # of all requests; those of the specification if None
    path: Path | None = None
    is_trace: bool = False  # or a recorded table
    is_default: bool = False  # nothing says what the requests are


def with_workload_spec(named: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a `--workload` that names a built-in workload or a file by `--workload-spec`.

    Raises:
        ConfigError: the name is not known, or `--workload-spec` is given too.
    """
    text = named.get("workload")
    if text is None or text in WORKLOAD_MODES:
        return dict(named)
    if not (text in list_builtin() or is_file_name(text)):
        known = (*WORKLOAD_MODES, *list_builtin())
        raise ConfigError(
            f"--workload: {text!r} is not known; use one of {', '.join(known)}, or a .yaml file"
            f"{closest(text, known)}"
        )
    if "workload_spec" in named:
        raise ConfigError("--workload: --workload-spec is given too; give one of them")
    others = {name: value for name, value in named.items() if name != "workload"}
    return {**others, "workload_spec": text}


def is_file_name(text: str) -> bool:
    """Return whether a workload's name is that of a file."""
    return Path(text).is_file() or os.sep in text or text.endswith((".yaml", ".yml"))


def source_of(options: RunOptions) -> Source:
    """Return the source of requests that the options describe, checked; no requests are drawn yet.

    Raises:
        ConfigError: two sources are given, or the seed does not fit `--rng jax`.
    """
    if options.workload_spec is not None and options.requests is not None:
        raise ConfigError("--workload-spec and --requests are both given; give one of them")
    trace_flags.check(options.named)
    stream, of_record = options.rng or STREAM, options.seed_of_record
    if options.trace is not None:
        return Source(options.trace, RECORDED, of_record, path=Path(options.trace), is_trace=True)
    if options.requests is not None:
        if options.workload is not None:
            raise ConfigError("--workload and --requests are both given; give one of them")
        return Source(options.requests, RECORDED, of_record, path=Path(options.requests))
    if options.workload_spec is not None:
        spec = _read_spec(options, options.workload_spec)
        seed = spec.seed if options.seed is None else options.seed
        if stream == "jax" and not 0 <= seed < MOST_SEEDS:
            raise ConfigError(
                f"seed: {seed} is not between 0 and {MOST_SEEDS - 1}, which --rng jax needs; "
                f"give another with --seed"
            )
        timeout_us = None if options.timeout is None else _timeout_us(options.timeout)
        policy_seed = of_record if spec.revision == REVISED else seed  # which never has the file's
        return Source(
            options.workload_spec, stream, policy_seed, seed, spec=spec, timeout_us=timeout_us
        )
    return _simple_source(options, stream)


def revision_of(options: RunOptions) -> str:
    """Return the revision of BLIS whose requests are drawn.

    Raises:
        ConfigError: an option of August's revision is given without its profile.
    """
    variant = options.variant
    revision = variant if variant in REVISIONS else FIRST_REVISION
    for name in REVISED_OPTIONS if revision == FIRST_REVISION else ():
        if name in options.named:
            raise ConfigError(
                f"{as_option(name)} is an option of BLIS's revision {REVISED}; give "
                f"--profile {REVISED} too, or leave it out"
            )
    return revision


def _timeout_us(seconds: float) -> int:
    """Return the time from arrival to deadline, µs; 0 for no deadline."""
    if not seconds:
        raise ConfigError("--timeout must be above 0 s, or negative for no deadline; got 0")
    if not seconds * 1e6 < MOST_SPAN_US:
        raise ConfigError(
            f"--timeout must be below {MOST_SPAN_US / 1e6:g} s, got {seconds:g}; give a negative number for no deadline"
        )
    return int(max(seconds, 0) * 1_000_000)


def _simple_source(options: RunOptions, stream: str) -> Source:
    """Return the source for a preset, or for a distribution given by options."""
    mode = options.workload or "distribution"
    if stream == "jax":
        raise ConfigError(
            f"--rng jax does not draw --workload {mode}; leave --rng out, or describe the traffic "
            f"in a YAML file and give it with --workload-spec"
        )
    seed = DISTRIBUTION_SEED if options.seed is None else options.seed
    is_default = not any(name in options.named for name in ("workload", *SIMPLE_OPTIONS))
    source = Source(mode, stream, seed, seed, is_default=is_default)
    if revision_of(options) == REVISED:
        seconds = TIMEOUT_S if options.timeout is None else options.timeout
        spec, timeout_us = _simple_spec(options, mode), _timeout_us(seconds)
        return replace(source, spec=spec, timeout_us=timeout_us)
    return replace(source, distribution=_distribution(options, mode, options.num_requests))


def _simple_spec(options: RunOptions, mode: str) -> WorkloadSpec:
    """Return the workload to which August's revision expands a preset, a distribution or a pool of users."""
    users, think_ms = options.concurrency or 0, options.think_time_ms or 0
    for name, value in (("--concurrency", users), ("--think-time-ms", think_ms)):
        if value < 0:
            raise ConfigError(f"{name} must be at least 0, got {value}")
    if users and options.rate is not None:
        raise ConfigError("--concurrency and --rate are both given; give one of them")
    horizon = NO_HORIZON if options.horizon is None else options.horizon
    is_open = options.num_requests == 0
    if is_open and horizon >= NO_HORIZON:
        raise ConfigError("--num-requests 0 has no end without --horizon; give one of them")
    spec = as_spec(
        _distribution(
            options, "distribution" if users else mode, 1 if is_open else options.num_requests
        ),
        horizon if horizon < NO_HORIZON else None,
        users,
        1000 * think_ms,
    )
    if is_open or (users and options.num_requests is None):
        return spec.model_copy(update={"num_requests": 0})  # it sends until the horizon
    return spec


def _distribution(options: RunOptions, mode: str, count: int | None) -> Distribution:
    kind_of = RevisedDistribution if revision_of(options) == REVISED else Distribution
    default = Distribution()
    rate = default.rate if options.rate is None else options.rate
    num_requests = default.num_requests if count is None else count
    numbers: Mapping[str, int] = options.named
    if mode != "distribution":
        of_file = preset_of(options.named.get("defaults_filepath"), mode)
        if of_file is None:
            prompt, output = PRESETS[mode]
            return kind_of(rate, num_requests, prompt=prompt, output=output)
        numbers = of_file

    return kind_of(
        rate=rate,
        num_requests=num_requests,
        prefix_tokens=numbers.get("prefix_tokens", default.prefix_tokens),
        prompt=GaussianLengths.of(numbers, "prompt", default.prompt),
        output=GaussianLengths.of(numbers, "output", default.output),
    )


MOST_SPAN_US = 2.0**62  # which a time can be added to
REVISED_OPTIONS = ("concurrency", "think_time_ms", "timeout")
LENGTH_OPTIONS = (
    "prefix_tokens",
    *(
        f"{kind}_tokens{part}"
        for kind in ("prompt", "output")
        for part in ("", "_stdev", "_min", "_max")
    ),
)
SIMPLE_OPTIONS = ("rate", "concurrency", "think_time_ms", *LENGTH_OPTIONS)


def _read_spec(options: RunOptions, text: str) -> WorkloadSpec:
    """Return the workload, its numbers overridden by options as in BLIS."""
    revision: str | None = revision_of(options)
    if revision == FIRST_REVISION and options.corrected:
        revision = None  # of the file
    if options.concurrency is not None:
        raise ConfigError(
            "--concurrency and --workload-spec are both given; put clients[].concurrency into the file"
        )
    if is_file_name(text):
        spec = load_spec(text, revision)
    elif text in list_builtin():
        spec = load_builtin(text, revision)
    else:
        raise ConfigError(
            f"--workload-spec {text!r} is neither a file nor a built-in workload "
            f"({', '.join(list_builtin())}){closest(text, list_builtin())}"
        )
    changes = {}
    if options.num_requests is not None:
        if options.num_requests < 0:
            raise ConfigError(f"--num-requests must be at least 0, got {options.num_requests}")
        changes["num_requests"] = options.num_requests
    if options.horizon is not None:
        changes["horizon"] = options.horizon if options.horizon < NO_HORIZON else 0
    return override(spec, **changes) if changes else spec


MOST_MOVED = 0.1  # of a mean length by its bounds


def _warn_of_moved_means(options: RunOptions, source: Source, notes: Notes) -> None:
    """Warn if the mean of the drawn lengths will differ from the mean asked for, because of the bounds."""
    if not any(name in options.named for name in LENGTH_OPTIONS):
        return
    drawn = _distribution(options, source.title, None)
    moved = [
        f"--{kind}-tokens {lengths.mean} will draw a mean of {lengths.drawn_mean:.0f}, for its deviation is "
        f"{lengths.stdev} and its bounds are {lengths.min} and {lengths.max}; give --{kind}-tokens-stdev"
        for kind, lengths in (("prompt", drawn.prompt), ("output", drawn.output))
        if abs(lengths.drawn_mean - lengths.mean) > MOST_MOVED * lengths.mean
    ]
    if moved:
        notes.warn("; ".join(moved))


def warn_of_idle_options(
    options: RunOptions, config: ClusterConfig, source: Source, notes: Notes
) -> None:
    """Warn of valid options and settings of the workload that have no effect on this run."""
    idle: list[str] = []
    if source.path is not None:
        idle, where = ["num_requests", "rng", "timeout", *SIMPLE_OPTIONS], "recorded requests"
        if not source.is_trace and not draws(config):
            idle.append("seed")
    elif options.workload_spec is not None:
        idle, where = ["workload", *SIMPLE_OPTIONS], "requests of --workload-spec"
    elif source.title != "distribution":
        idle, where = [*LENGTH_OPTIONS], f"the preset {source.title}"
    else:
        _warn_of_moved_means(options, source, notes)
    for name in idle:
        if name in options.named:
            notes.warn(f"{as_option(name)} has no effect on {where}")
    if options.lazy_generation:
        notes.warn("--lazy-generation has no effect: the same requests are drawn before the run")
    if source.spec is None or options.workload_spec is None:
        return

    for remark in ineffective_settings(source.spec):
        notes.warn(remark)
    if source.spec.measure != MeasureSpec():
        notes.warn("measure has no effect here: the figures are BLIS's, over all requests")


def closed_loop_of(source: Source) -> DrawnWorkload | None:
    """Draw and return the workload if it has closed-loop sessions; else return None."""
    if not is_revised(source) or source.stream == "jax":
        return None

    assert source.spec is not None
    workload = drawn(source.spec, source.seed, source.timeout_us)
    return workload if workload.sessions else None


def is_revised(source: Source) -> bool:
    """Return whether the requests are drawn by the rules of August 2026."""
    return source.spec is not None and source.spec.revision != FIRST_REVISION
