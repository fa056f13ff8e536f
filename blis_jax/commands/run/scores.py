"""Options for verdicts on a run, with the names of BLIS of August 2026: goodput, saturation, fitness."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands import cli
from blis_jax.commands.options import CommandOptions, option
from blis_jax.commands.options.trace_flags import GivenTrace
from blis_jax.commands.values import number_within
from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError, as_option, choices, shortened
from blis_jax.files import input_files
from blis_jax.files.atomic_write import json_as_go, write_text
from blis_jax.files.strict_yaml import read_yaml
from blis_jax.metrics.summaries import mean_itl_us
from blis_jax.results.scores import (
    DETECTORS,
    Tuning,
    Verdicts,
    check_weights,
    fitness,
    goodput_fields,
    saturation,
)

if TYPE_CHECKING:
    from blis_jax.records.record import RunRecord
    from blis_jax.traces.read import Trace
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.spec_parts import ClassTargets

_DIMENSIONS = ("ttft", "itl", "e2e")


def _limits_option(words: str) -> Any:
    return option(
        str, "", "LIST",
        f"limits of {words} by class for goodput, such as critical=100ms,default=2s; before those of the "
        "workload file or the trace",
    )  # fmt: skip


class ScoreOptions(
    CommandOptions, title="verdicts on the run, as BLIS of August 2026 computes them"
):
    """Options for scores and detectors beside a run's figures."""

    slo_ttft: str = _limits_option("TTFT")
    slo_itl: str = _limits_option("mean ITL")
    slo_e2e: str = _limits_option("E2E")
    fitness_weights: str = option(
        str, "", "LIST", "weights of a fitness to print, such as throughput:0.5,p99_ttft:0.3"
    )
    detectors: str = option(
        str,
        "",
        "NAMES",
        f"print whether the run was saturated at its end, by {', '.join(DETECTORS)} or all",
    )
    saturation_config: str | None = option(
        str, None, "FILE", "YAML file with numbers for the detectors threshold and backlog-drift"
    )
    saturation_report: str | None = option(
        str, None, "FILE", "file for what the detectors say after every event (JSON)"
    )
    saturation_final_window: str | None = option(
        str, None, "TIME", "time before the last event in which the detectors vote on their verdict, such as 30s; "
        "if not given the file's window, else 30s",
    )  # fmt: skip


@dataclass(frozen=True)
class Scores:
    """The scores and detectors that the options ask for, checked before the run."""

    limits: dict[str, dict[str, float]] = field(default_factory=dict)  # ms by class and dimension
    weights: dict[str, float] = field(default_factory=dict)
    detectors: tuple[str, ...] = ()
    tuning: Tuning | None = None
    report: Path | None = None


def scores_of(
    options: ScoreOptions,
    spec: WorkloadSpec | None = None,
    trace: Trace | None = None,
    read: GivenTrace | None = None,
) -> Scores:
    """Return the scores from the options; limits they lack come from the workload file or the trace's header.

    Args:
        options: the options for scores and detectors.
        spec: the workload file, if any.
        trace: the trace, if any.
        read: the options from which the trace was read, with the path of its header.

    Raises:
        ConfigError: an option or the file cannot be used, or an option would have no effect.
    """
    weights = {}
    for pair in _pairs(options.fitness_weights):
        name, colon, text = (part.strip() for part in pair.partition(":"))
        if not colon:
            raise ConfigError(f"--fitness-weights: {pair!r} must be NAME:WEIGHT")
        weights[name] = number_within(f"--fitness-weights: {name}", text)
    if weights:
        try:
            check_weights(weights)
        except ConfigError as error:
            raise ConfigError(f"--fitness-weights: {error}") from None
    detectors = _detectors(options.detectors)
    if not detectors:
        for name in ("saturation_config", "saturation_report", "saturation_final_window"):
            if getattr(options, name) is not None:
                raise ConfigError(
                    f"{as_option(name)} has no meaning without --detectors; give that too"
                )
    return Scores(
        _limits(options, _targets(spec, trace, read)),
        weights,
        detectors,
        _tuning(options, detectors) if detectors else None,
        None if options.saturation_report is None else Path(options.saturation_report),
    )


def verdicts_on(record: RunRecord, request_ids: Sequence[str], scores: Scores) -> Verdicts:
    """Return BLIS's verdicts on a run; write the detectors' report if it was asked for.

    Args:
        record: the run.
        request_ids: the requests' ids.
        scores: the scores and detectors asked for.
    """
    fields: dict[str, Any] = {}
    if scores.tuning is not None:
        judged = saturation(record, request_ids, scores.detectors, scores.tuning)
        fields = {"saturation": judged.final} if judged.final else {}
        if scores.report is not None:
            text = f"{json_as_go(judged.document())}\n"
            with cli.writing(scores.report):
                write_text(scores.report, text)
    if scores.limits:
        fields |= goodput_fields(record, scores.limits, mean_itl_us(record), request_ids)
    lines: tuple[str, ...] = ()
    if scores.weights:
        score, components = fitness(record, scores.weights)
        lines = ("=== Fitness Evaluation ===", f"Score: {score:.6f}")
        lines += tuple(f"  {name}: {value:.6f}" for name, value in components.items())
    return Verdicts(fields, lines, bool(scores.limits))


def absent_lines(record: RunRecord, scores: Scores) -> Iterator[str]:
    """Yield a sentence for each class with limits of which a run has no request."""
    there = [CLASS_NAMES[code] for code in np.unique(record.requests.slo_class).tolist()]
    for name in scores.limits:
        if name not in there:
            yield f"no request is of class {name!r}, which has limits; there are {', '.join(there)}"


# --- what the options say -------------------------------------------------------------------------

_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_UNITS |= {"m": 60 * 10**9, "h": 3600 * 10**9}
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"


def nanoseconds(text: str) -> int | None:
    """Convert a time in Go's notation, such as 1m30s or 2.5ms, to ns; None if it is malformed or not above 0."""
    if not re.fullmatch(rf"\+?(?:{_PART})+", text):
        return None
    total = sum(int(Fraction(number) * _UNITS[unit]) for number, unit in re.findall(_PART, text))
    return total if 0 < total < 2**63 else None


def _pairs(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


def _targets(
    spec: WorkloadSpec | None, trace: Trace | None, read: GivenTrace | None
) -> Mapping[str, ClassTargets]:
    """Return the targets by class, from the workload file or the header of a trace of August 2026."""
    if trace is None or trace.format != "trace-v3" or read is None:
        targets: Mapping[str, ClassTargets] = getattr(spec, "goodput_slo_targets", {})
        return targets
    from blis_jax.traces.formats.trace_v3 import header_of

    header = header_of(Path(read.trace or ""), read.trace_header)
    return {} if header is None else header.goodput_slo_targets


def _limits(
    options: ScoreOptions, targets: Mapping[str, ClassTargets]
) -> dict[str, dict[str, float]]:
    """Return the limits by class; for each latency an option overrides the workload's target."""
    by_class = {
        name: {
            dimension: limit
            for dimension in _DIMENSIONS
            if (limit := getattr(target, f"{dimension}_ms"))
        }
        for name, target in targets.items()
    }
    texts = {"ttft": options.slo_ttft, "itl": options.slo_itl, "e2e": options.slo_e2e}
    for dimension, limits in texts.items():
        for pair in _pairs(limits):
            name, _, text = (part.strip() for part in pair.partition("="))
            time_ns = nanoseconds(text)
            if not name or time_ns is None:
                raise ConfigError(
                    f"--slo-{dimension}: {shortened(pair)} must be CLASS=TIME with a time above 0, "
                    "such as critical=100ms"
                )
            by_class.setdefault(name, {})[dimension] = time_ns / 1e6
    return {name: limits for name, limits in by_class.items() if limits}


def _detectors(text: str) -> tuple[str, ...]:
    if text in ("", "all"):
        return DETECTORS if text else ()
    names = [name for name in _pairs(text) if name]
    for name in names or [text]:
        if name not in DETECTORS:
            raise ConfigError(
                f"--detectors: {name!r} is not known; {choices(name, DETECTORS)}, or all"
            )
    return tuple(name for name in DETECTORS if name in names)


def _tuning(options: ScoreOptions, detectors: Sequence[str]) -> Tuning:
    path = options.saturation_config
    numbers = {} if path is None else _tuning_file(path, detectors)
    tuning: dict[str, Any] = {}
    if "threshold_ms" in numbers:
        tuning["threshold_ms"] = numbers["threshold_ms"]
    if "window_size_sec" in numbers:
        tuning["bucket_us"] = tuning["window_us"] = int(numbers["window_size_sec"]) * 1_000_000
    if text := options.saturation_final_window:
        time_ns = nanoseconds(text)
        if time_ns is None:
            raise ConfigError(
                f"--saturation-final-window: {shortened(text)} must be a time above 0, such as 30s"
            )
        tuning["window_us"] = time_ns // 1000
    return Tuning(**tuning)


_MORE = float("inf")
_BLOCKS: dict[str, dict[str, tuple[type, float, float, bool]]] = {
    # kind, bounds, and whether the bounds are allowed themselves; those without effect in BLIS are checked too
    "threshold": {"threshold_ms": (float, 0, _MORE, False)},
    "backlog_drift": {
        "window_size_sec": (int, 0, 2**43, False),
        "min_windows": (int, 0, _MORE, False),
        "peak_ratio": (float, 0, _MORE, False),
        "peak_ratio_band": (float, 0, _MORE, True),
        "confidence_ci": (float, 0, 1, False),
        "warmup_windows": (int, 0, _MORE, True),
        "tail_windows": (int, 0, _MORE, True),
        "saturated_drain_ratio": (float, 0, 1, False),
        "transient_drain_ratio": (float, 0, 1, False),
    },
}
_UP_TO_ONE = ("saturated_drain_ratio", "transient_drain_ratio")  # 1 is allowed


def _tuning_file(path: str, detectors: Sequence[str]) -> dict[str, float]:
    """Return the numbers of a tuning file by key, checked."""
    document = read_yaml(
        input_files.read_text(Path(path), "a YAML file with detectors' numbers"), path
    )
    tuned: dict[str, float] = {}
    for block, numbers in input_files.mapping(document or {}, path).items():
        if block not in _BLOCKS:
            raise ConfigError(
                f"{path}: {shortened(block)} is not known; {choices(str(block), _BLOCKS)}"
            )
        if block.replace("_", "-") not in detectors:
            raise ConfigError(
                f"{path}: {block} has no meaning without that detector; add it to --detectors"
            )
        for key, value in input_files.mapping(numbers or {}, f"{path}: {block}").items():
            tuned[key] = _checked(f"{path}: {block}", key, value, _BLOCKS[block])
    low, high = (
        tuned.get(name, usual) for name, usual in zip(_UP_TO_ONE, (0.95, 0.98), strict=True)
    )
    if low > high:
        raise ConfigError(
            f"{path}: saturated_drain_ratio {low:g} is above transient_drain_ratio {high:g}"
        )
    return tuned


def _checked(
    place: str, key: str, value: Any, known: Mapping[str, tuple[type, float, float, bool]]
) -> float:
    if key not in known:
        raise ConfigError(f"{place}: {shortened(key)} is not known; {choices(str(key), known)}")
    kind, low, high, has_ends = known[key]
    is_number = isinstance(value, int | kind) and not isinstance(value, bool)
    is_inside = is_number and (low < value < high or (has_ends and value == low))
    if not (is_inside or (is_number and key in _UP_TO_ONE and value == 1)):
        words = "a whole number" if kind is int else "a number"
        limits = f"of at least {low:g}" if has_ends else f"above {low:g}"
        limits += "" if high >= 2**43 else ", at most 1" if key in _UP_TO_ONE else ", below 1"
        raise ConfigError(f"{place}.{key}: got {shortened(value)}, allowed is {words} {limits}")
    return float(value)
