"""The mechanisms of a configuration that did nothing: that never acted, or changed no request's life.

A mechanism is inert by its settings (the engine gets the same numbers without the mechanism), by the records (the
mechanism left no trace in any run), or by a run without the mechanism on the same seeds in which every request had the
same life.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import everywhere, has_cpu_tier, per_instance
from blis_jax.cluster.router import without_scorer
from blis_jax.core.kinds import NONE
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from sweeps.runs.measured import KeptRuns, same_lives
from sweeps.strategies.file import Strategy

INERT, ACTIVE, UNKNOWN = "inert", "active", "unknown"
BY_SETTINGS, BY_RECORDS, BY_SWITCHING_OFF = "settings", "records", "a run without it"
Configured = Callable[[ClusterConfig], ClusterConfig]


@dataclass(frozen=True)
class Feature:
    """A mechanism that a configuration may have; `without` returns the configuration without the mechanism."""

    name: str
    settings: tuple[str, ...]
    is_present: Callable[[ClusterConfig], bool]
    without: Configured
    traces: Mapping[str, str] | None = None  # counts of `RunSummary.acted`, in words; all 0: inert


@dataclass(frozen=True)
class MechanismFinding:
    """The status of one feature; `evidence` is BY_SETTINGS, BY_RECORDS or BY_SWITCHING_OFF."""

    feature: str
    settings: tuple[str, ...]
    is_required: bool  # by the strategy's file
    status: str
    evidence: str
    reason: str


def _replaced(**changes: object) -> Configured:
    return lambda config: everywhere(config, **changes)


def _default(name: str) -> Any:
    return getattr(ClusterConfig(), name)


def _has(config: ClusterConfig, setting: str) -> bool:
    """Return whether the setting is on, or above 0, on some instance."""
    return any(value > 0 for value in per_instance(config, setting))


def _switch(
    name: str, setting: str, off: object, traces: Mapping[str, str] | None = None
) -> Feature:
    """Return the mechanism that one setting switches off by its value `off`."""

    def is_on(config: ClusterConfig) -> bool:
        return bool(getattr(config, setting) != off)

    return Feature(name, (setting,), is_on, _replaced(**{setting: off}), traces)


FEATURES = (
    Feature(
        "CPU KV tier",
        ("kv_cpu_blocks",),
        has_cpu_tier,
        lambda config: everywhere(config.replace(offload_policy=NONE), kv_cpu_blocks=0),
        {"cpu_offloads": "offloaded", "cpu_reloads": "reloaded"},
    ),
    _switch("admission gate", "admission_policy", "always-admit", {"num_rejected": "rejected"}),
    _switch("precise KV routing", "precise_kv_routing", False),
    _switch("priority bridge", "slo_priority_bridge", False),
    Feature(
        "scheduler and priorities",
        ("scheduler", "priority_policy"),
        lambda config: config.scheduler != "fcfs",
        _replaced(scheduler="fcfs", priority_policy="constant"),
    ),
    _switch("priority policy", "priority_policy", "constant"),
    Feature(
        "growth of priority with age",
        ("slo_age_weight",),
        lambda config: (
            config.priority_policy in ("slo-tiered", "load-adaptive") and config.slo_age_weight > 0
        ),
        _replaced(slo_age_weight=0.0),
    ),
    Feature(
        "adaptation of priorities to load",
        ("priority_policy", "load_adaptive_low", "load_adaptive_high"),
        lambda config: config.priority_policy == "load-adaptive",
        _replaced(priority_policy="slo-tiered"),
    ),
    Feature(
        "chunks",
        ("long_prefill_token_threshold", "slo_prefill"),
        lambda config: _has(config, "long_prefill_token_threshold") or _has(config, "slo_prefill"),
        _replaced(long_prefill_token_threshold=0, slo_prefill=False),
    ),
    Feature(
        "chunks by class",
        ("slo_prefill", "slo_prefill_critical", "slo_prefill_sheddable"),
        lambda config: _has(config, "slo_prefill"),
        _replaced(slo_prefill=False),
    ),
    Feature(
        f"token budget (against {_default('max_num_scheduled_tokens'):,})",
        ("max_num_scheduled_tokens",),
        lambda config: (
            {_default("max_num_scheduled_tokens")}
            != set(per_instance(config, "max_num_scheduled_tokens"))
        ),
        lambda config: everywhere(
            config, max_num_scheduled_tokens=_default("max_num_scheduled_tokens")
        ),
    ),
    _switch("preemption by priority", "slo_preemption", False, {"num_preemptions": "preempted"}),
    _switch("snapshot age", "snapshot_refresh_interval", 0),
)


def features_of(config: ClusterConfig, has_scorers: bool = False) -> Iterator[Feature]:
    """Yield the mechanisms that a configuration has; if `has_scorers`, also each scorer of its router.

    Each router with a scorer less is compiled anew, so checking scorers takes several times as long.
    """
    yield from (feature for feature in FEATURES if feature.is_present(config))
    scorers = config.scorers() if has_scorers else []
    for name, _ in scorers if len(scorers) > 1 else ():
        others = _replaced(routing_scorers=without_scorer(scorers, name))
        yield Feature(f"scorer {name}", ("routing_scorers",), lambda _: True, others)


def without_each(config: ClusterConfig, has_scorers: bool = False) -> Iterator[ClusterConfig]:
    """Yield, for each mechanism that settings alone do not show to be inert, the configuration without it."""
    for feature in features_of(config, has_scorers):
        with contextlib.suppress(ConfigError):
            without = feature.without(config)
            if not gives_the_same(config, without):
                yield without


def findings(
    config: ClusterConfig,
    runs: Sequence[RunSummary],
    kept: KeptRuns | None,
    strategy: Strategy | None = None,
    has_scorers: bool = False,
) -> list[MechanismFinding]:
    """Return for each mechanism of a configuration whether it did nothing, did something, or is undecided in these
    runs.

    Where settings and records do not decide, `kept` makes the runs without the mechanism; without `kept` such
    mechanisms stay undecided.
    """
    required = set(strategy.required_settings) if strategy is not None else set()
    judged = []
    for feature in features_of(config, has_scorers):
        status, evidence, reason = _judged(config, feature, runs, kept)
        is_required = bool(required & set(feature.settings))
        judged.append(
            MechanismFinding(feature.name, feature.settings, is_required, status, evidence, reason)
        )
    return judged


def _judged(
    config: ClusterConfig, feature: Feature, runs: Sequence[RunSummary], kept: KeptRuns | None
) -> tuple[str, str, str]:
    whole = [run for run in runs if run.is_whole]
    try:
        without = feature.without(config)
    except ConfigError as error:
        return UNKNOWN, BY_SETTINGS, f"without it, the other settings are not valid: {error}"
    if gives_the_same(config, without):
        return INERT, BY_SETTINGS, "the engine gets the same numbers without it"
    if not whole:
        return UNKNOWN, BY_RECORDS, "no run finished"
    if feature.traces is not None:
        counts = {name: sum(run.acted[name] for run in whole) for name in feature.traces}
        if not any(counts.values()):
            words = " or ".join(feature.traces.values())
            return INERT, BY_RECORDS, f"nothing was {words} on any seed"
        words = ", ".join(f"{counts[name]} {word}" for name, word in feature.traces.items())
        if kept is None:
            return ACTIVE, BY_RECORDS, words
    if kept is None:
        return UNKNOWN, BY_RECORDS, "the records alone cannot tell, and no run was made without it"
    others = kept.on_first_seeds(without, f"without {feature.name}")
    return _switched_off(runs[: len(others)], others)


def _switched_off(
    runs: Sequence[RunSummary], without: Sequence[RunSummary]
) -> tuple[str, str, str]:
    if same_lives(runs, without):
        return INERT, BY_SWITCHING_OFF, "without it, every request fares exactly the same"
    differ = sum(
        run.fingerprint != run_without.fingerprint
        for run, run_without in zip(runs, without, strict=True)
    )
    if not differ:
        return UNKNOWN, BY_SWITCHING_OFF, "without it, no finished run differs"
    return ACTIVE, BY_SWITCHING_OFF, f"requests fared otherwise on {differ} of {len(runs)} seeds"


def gives_the_same(first: ClusterConfig, second: ClusterConfig) -> bool:
    """Return whether the engine gets equal functions and equal numbers from two configurations."""
    if first.block_size_in_tokens != second.block_size_in_tokens:
        return False
    if first.num_instances != second.num_instances or mechanism(first) != mechanism(second):
        return False

    leaves = [jax.tree.leaves(params(config)) for config in (first, second)]
    return all(np.array_equal(leaf, other) for leaf, other in zip(*leaves, strict=True))
