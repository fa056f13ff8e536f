"""Judges of classes and mechanisms: classes that are not served, idle mechanisms, lengths that reveal the class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import ks_2samp
from sklearn.model_selection import StratifiedKFold, permutation_test_score
from sklearn.tree import DecisionTreeClassifier

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import everywhere, per_instance
from blis_jax.core.types import SLO_CLASSES
from blis_jax.files.atomic_write import finite
from blis_jax.workload.reference import draw
from sweeps.claims.words import CONCERN, PASS, REJECT
from sweeps.review.candidates import Candidate, Exhibit, Judge, Looked
from sweeps.strategies.crossover import crossover
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of

if TYPE_CHECKING:
    from jaxtyping import Int

CEILING = 2.0  # times the baseline's P99, as registered by the record
LONG_S = 5.0  # after which an old request passes a new, more urgent one
MOST_REJECTED, MANY_REJECTED = 0.95, 0.5
BASELINE = "baseline"
BY_CLASS = ("slo-tiered", "load-adaptive", "slo-class")


def baseline_of(candidate: Candidate) -> dict[str, ClusterConfig]:
    """Return the baseline that the strategy names, or that of the ledger."""
    name = candidate.strategy.baseline if candidate.strategy is not None else "iter00_baseline"
    return {BASELINE: space_of(load_strategy(name)).base}


def look_at_classes(exhibit: Exhibit) -> Looked:
    """Reject a strategy under which a class is not served."""
    candidate = exhibit.candidate
    reviewed: list[tuple[str, str]] = []
    evidence: dict[str, Any] = {}
    for slo_class in candidate.classes:
        evidence[slo_class], verdicts = _on_class(exhibit, slo_class)
        reviewed += verdicts
    seconds = crossover_s(candidate.config)
    evidence["an old sheddable request passes a new critical one after, s"] = (
        seconds if seconds is None or math.isfinite(seconds) else "never"
    )
    if seconds is not None and seconds > LONG_S:
        words = "never" if math.isinf(seconds) else f"only after {seconds:.3g} s"
        words = f"an old sheddable request passes new critical ones {words}"
        reviewed.append((REJECT if math.isinf(seconds) else CONCERN, words))
    failed = [run.outcome.name for run in exhibit.own if not run.is_whole]
    if failed:
        words = f"{len(failed)} of {len(exhibit.own)} runs ended with {failed[0]}"
        reviewed.append((REJECT, words))
    return reviewed, evidence


def crossover_s(config: ClusterConfig) -> float | None:
    """Return the age at which a sheddable request passes a newly arrived critical one, s; None without classes."""
    if config.priority_policy not in BY_CLASS or config.scheduler != "priority-fcfs":
        return None
    return crossover(config, "sheddable", "critical").age_s


def _on_class(exhibit: Exhibit, slo_class: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return figures of one class, and the problems with them."""
    config, base = exhibit.candidate.config, baseline_of(exhibit.candidate)[BASELINE]
    done = exhibit.mean(config, f"completion_rate[{slo_class}]")
    rejected = exhibit.mean(config, f"rejected_share[{slo_class}]")
    tail = exhibit.mean(config, f"ttft_p99_ms[{slo_class}]")
    before = exhibit.mean(base, f"ttft_p99_ms[{slo_class}]")
    ratio = tail / before if before else math.nan
    figures = {
        "completed": finite(done),
        "rejected": finite(rejected),
        "TTFT P99, ms": finite(tail),
        "TTFT P99 of the baseline, ms": finite(before),
    }
    parts = []
    let_in = 1 - rejected
    if let_in > 0 and done < 0.9 * let_in:
        words = f"{done / let_in:.0%} of the {slo_class} requests that were let in complete"
        parts.append((REJECT if done < 0.5 * let_in else CONCERN, words))
    if rejected > MANY_REJECTED:
        words = f"{rejected:.0%} of the {slo_class} requests are turned away"
        parts.append((REJECT if rejected > MOST_REJECTED else CONCERN, words))
    if ratio > CEILING:
        words = (
            f"{slo_class} TTFT P99 is {ratio:.2f} times the baseline's, the ceiling is {CEILING:g}"
        )
        parts.append((CONCERN, words))
    return figures, parts


STARVATION = Judge(
    "starvation",
    "every class completes within twice its time under the baseline",
    "runs of the candidate and of the baseline on common seeds; gap of base scores ÷ age weight",
    look_at_classes,
    baseline_of,
)


# what a mechanism's setting is without it
OFF: Mapping[str, Any] = {
    "kv_cpu_blocks": 0,
    "admission_policy": "always-admit",
    "priority_policy": "constant",
    "scheduler": "fcfs",
    "slo_priority_bridge": False,
    "slo_prefill": False,
    "slo_preemption": False,
    "snapshot_refresh_interval": 0,
    "precise_kv_routing": False,
    "long_prefill_token_threshold": 0,
}


def without_mechanisms(candidate: Candidate) -> dict[str, ClusterConfig]:
    """Return the candidate without each of its mechanisms, one at a time, and the baseline."""
    config = candidate.config
    configs = {
        name: everywhere(config, **{name: off})
        for name, off in OFF.items()
        if any(value != off for value in per_instance(config, name))
    }
    return {**configs, **baseline_of(candidate)}


def look_at_mechanisms(exhibit: Exhibit) -> Looked:
    """Reject a strategy whose requests fare as under the baseline; name the mechanisms that do nothing."""
    candidate = exhibit.candidate
    required = candidate.strategy.required_settings if candidate.strategy is not None else {}
    made = without_mechanisms(candidate)
    shares = {name: exhibit.differing(config) for name, config in made.items()}
    idle = [name for name, share in shares.items() if share == 0 and name != BASELINE]
    parts = []
    if shares[BASELINE] == 0 and candidate.config != made[BASELINE]:
        words = "every request fares as under the baseline: nothing that the strategy adds has an effect"
        parts.append((REJECT, words))
    for name in idle:
        words = ", which the strategy requires," if name in required else ""
        parts.append((CONCERN, f"{name}{words} changes no request on this workload"))
    return parts, {f"requests that differ without {name}": share for name, share in shares.items()}


INERT = Judge(
    "inert",
    "every mechanism changes some request",
    "runs without each mechanism, compared request by request",
    look_at_mechanisms,
    without_mechanisms,
)


DEPTH, FOLDS, LEAF = 3, 5, 10  # of the decision tree
NUM_SHUFFLES, STATE = 60, 0
BETTER = 0.1  # balanced accuracy above chance that counts
SIGNIFICANT = 0.05


def look_at_lengths(exhibit: Exhibit) -> Looked:
    """Reject a strategy that reads lengths where lengths reveal the class."""
    candidate = exhibit.candidate
    prompt, output, codes = lengths(candidate, exhibit.seeds[0])
    counts = np.bincount(codes)
    if (counts > 0).sum() < 2 or counts[counts > 0].min() < FOLDS:
        words = "the workload has one class, or too few requests of one, so lengths cannot tell"
        return [(PASS, words)], {}
    by_prompt = _accuracy(prompt[:, None], codes)
    by_both = _accuracy(np.column_stack([prompt, output]), codes)
    evidence = {
        "balanced accuracy from the prompt": by_prompt[0],
        "p from shuffled classes, prompt": by_prompt[1],
        "balanced accuracy from prompt and output": by_both[0],
        "p from shuffled classes, both": by_both[1],
        "chance": by_prompt[2],
        "Kolmogorov-Smirnov, prompt": _distance(prompt, codes),
        "Kolmogorov-Smirnov, output": _distance(output, codes),
    }
    told = [
        name
        for name, (accuracy, p, chance) in (("prompt", by_prompt), ("prompt and output", by_both))
        if accuracy >= chance + BETTER and p <= SIGNIFICANT
    ]
    readers = readers_of_length(candidate)
    verdict, words = PASS, ""
    if "prompt" in told and readers:
        verdict = REJECT
        words = (
            f"{', '.join(readers)} reads prompt lengths, which tell the class in {by_prompt[0]:.0%} "
            f"of the requests (chance {by_prompt[2]:.0%}), so gains by class may be gains by length"
        )
    elif told:
        verdict = CONCERN
        words = (
            f"lengths ({told[-1]}) tell the class in {max(by_prompt[0], by_both[0]):.0%} of the requests "
            f"(chance {by_prompt[2]:.0%}); test on a workload of equal laws too"
        )
    return [(verdict, words)], evidence


def lengths(candidate: Candidate, seed: int) -> tuple[Any, Any, Int[np.ndarray, "request"]]:
    """Return prompt lengths and output lengths in tokens, and class codes, of the requests of a seed."""
    table, _ = draw(candidate.spec, seed, candidate.config.block_size_in_tokens)
    return (
        np.asarray(table.input_len, float),
        np.asarray(table.output_len, float),
        np.asarray(table.slo_class),
    )


def readers_of_length(candidate: Candidate) -> list[str]:
    """Return the settings by which a strategy's decisions depend on prompt lengths and favour some of them."""
    config = candidate.config
    readers = ["scheduler sjf"] if config.scheduler == "sjf" else []
    if config.admission_policy == "token-bucket":
        readers.append("admission policy token-bucket")
    return readers


def _accuracy(features: np.ndarray, codes: np.ndarray) -> tuple[float, float, float]:
    """Return cross-validated balanced accuracy, its p-value against shuffled classes, and the accuracy of chance."""
    tree = DecisionTreeClassifier(
        max_depth=DEPTH, min_samples_leaf=LEAF, class_weight="balanced", random_state=STATE
    )
    score, _, p = permutation_test_score(
        tree,
        features,
        codes,
        scoring="balanced_accuracy",
        cv=StratifiedKFold(FOLDS, shuffle=True, random_state=STATE),
        n_permutations=NUM_SHUFFLES,
        random_state=STATE,
    )
    return float(score), float(p), 1.0 / len(np.unique(codes))


def _distance(values: np.ndarray, codes: np.ndarray) -> dict[str, float]:
    """Return the Kolmogorov-Smirnov statistic between every two classes, with Bonferroni's p-value."""
    pairs = list(combinations(np.unique(codes), 2))
    distances = {}
    for first, second in pairs:
        result = ks_2samp(values[codes == first], values[codes == second])
        name = f"{SLO_CLASSES[first] or 'default'}/{SLO_CLASSES[second] or 'default'}"
        distances[name] = float(result.statistic)
        distances[f"{name}, p"] = min(1.0, float(result.pvalue) * len(pairs))
    return distances


PROXY = Judge(
    "proxy",
    "lengths do not tell the classes apart on this workload",
    f"a decision tree of depth {DEPTH} on the requests of the first seed, {FOLDS}-fold, against "
    f"{NUM_SHUFFLES} shuffles; Kolmogorov-Smirnov between every two classes",
    look_at_lengths,
)
