"""Judge of workloads: can the lengths of a request stand in for its class?"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from sweeps.review.candidates import Candidate
from sweeps.review.opinion import CONCERN, PASS, REJECT, Exhibit, Judge, Opinion, nothing

if TYPE_CHECKING:
    from jaxtyping import Int

DEPTH, FOLDS, LEAF = 3, 5, 10  # of the decision tree
NUM_SHUFFLES, STATE = 60, 0
BETTER = 0.1  # balanced accuracy above chance that counts
SIGNIFICANT = 0.05


def judge(exhibit: Exhibit) -> Opinion:
    """Rejects a strategy that reads lengths where they tell the class."""
    candidate = exhibit.candidate
    prompt, output, codes = lengths(candidate, exhibit.seeds[0])
    counts = np.bincount(codes)
    if (counts > 0).sum() < 2 or counts[counts > 0].min() < FOLDS:
        words = "the workload has one class, or too few requests of one, so lengths cannot tell"
        return Opinion("proxy", candidate.name, PASS, (words,))
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
    verdict, words = PASS, "lengths do not tell the classes apart on this workload"
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
    return Opinion(
        "proxy",
        candidate.name,
        verdict,
        (words,),
        evidence,
        f"a decision tree of depth {DEPTH} on the requests of the first seed, {FOLDS}-fold, against "
        f"{NUM_SHUFFLES} shuffles; Kolmogorov-Smirnov between every two classes",
    )


def lengths(candidate: Candidate, seed: int) -> tuple[Any, Any, Int[np.ndarray, "request"]]:
    """Prompt and output lengths in tokens, and class codes, of the requests of a seed."""
    from blis_jax.workload.reference import draw

    table, _ = draw(candidate.spec, seed, candidate.config.block_size_in_tokens)
    return (
        np.asarray(table.input_len, float),
        np.asarray(table.output_len, float),
        np.asarray(table.slo_class),
    )


def readers_of_length(candidate: Candidate) -> list[str]:
    """Settings by which a strategy's decisions depend on prompt lengths and favour some."""
    config = candidate.config
    found = ["scheduler sjf"] if config.scheduler == "sjf" else []
    if config.admission_policy == "token-bucket":
        found.append("admission policy token-bucket")
    return found


def _accuracy(features: np.ndarray, codes: np.ndarray) -> tuple[float, float, float]:
    """Cross-validated balanced accuracy, its p against shuffled classes, and that of chance."""
    from sklearn.model_selection import StratifiedKFold, permutation_test_score
    from sklearn.tree import DecisionTreeClassifier

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
    """The statistic between every two classes, with Bonferroni's p."""
    from scipy.stats import ks_2samp

    pairs = list(combinations(np.unique(codes), 2))
    found = {}
    for one, other in pairs:
        result = ks_2samp(values[codes == one], values[codes == other])
        name = f"{SLO_CLASSES[one] or 'default'}/{SLO_CLASSES[other] or 'default'}"
        found[name] = float(result.statistic)
        found[f"{name}, p"] = min(1.0, float(result.pvalue) * len(pairs))
    return found


PROXY = Judge("proxy", "lengths that stand in for the class", nothing, judge)
