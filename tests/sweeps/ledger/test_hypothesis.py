"""Which hypotheses are allowed: families with types, categories with types, claims with both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from blis_jax.errors import ConfigError
from sweeps.claims.words import CATEGORIES, RESOLUTIONS, SHORT_FAMILIES, TYPES, TYPES_OF
from sweeps.ledger.hypothesis import (
    Hypothesis,
    check_resolution,
    family_named,
    hypothesis_of,
    type_named,
)

CLAIMS = {  # by type, for a comparison and for a threshold
    "Deterministic": ("num_changed_requests <= 0", "num_dropped <= 0"),
    "Dominance": ("ttft_p99_ms <= -20%", "ttft_p99_ms <= 100"),
    "Monotonicity": ("ttft_p99_ms falls", "ttft_p99_ms falls"),
    "Equivalence": ("ttft_p99_ms in -5..5%", "slo_gap in 0.9..1.1"),
    "Pareto": ("ttft_p99_ms <= -20%", "ttft_p99_ms <= 100"),
}
ALLOWED = {
    ("Workload/arrival", "Deterministic"),
    ("Workload/arrival", "Dominance"),
    ("Workload/arrival", "Monotonicity"),
    ("Scheduler invariants", "Deterministic"),
    ("Performance-regime", "Monotonicity"),
    ("Performance-regime", "Equivalence"),
    ("Performance-regime", "Pareto"),
    ("Structural model", "Deterministic"),
    ("Structural model", "Dominance"),
    ("Structural model", "Monotonicity"),
    ("Robustness/failure-mode", "Deterministic"),
    ("Robustness/failure-mode", "Dominance"),
    ("Cross-policy comparative", "Dominance"),
    ("Cross-policy comparative", "Equivalence"),
    ("Cross-policy comparative", "Pareto"),
}


def hypothesis(**changes: Any) -> Hypothesis:
    arm = {"text": "a", "strategy": "a", "settings": {}, "hash": "0"}
    usual = {
        "id": "12",
        "statement": "A wins.",
        "family": "Cross-policy comparative",
        "vvuq": "Validation",
        "type": "Dominance",
        "name": "a",
        "mechanism": "order",
        "diagnostic": "order does not matter",
        "predictions": ["ttft_p99_ms[critical] <= -20%"],
        "arms": {"strategy": arm, "baseline": arm},
        "seeds": [42, 43, 44],
    }
    return hypothesis_of({**usual, **changes})


def of_kind(family: str, kind: str, category: str) -> Hypothesis:
    claim = CLAIMS[kind][category == "UQ"]
    predictions = [claim, "tokens_per_sec >= -5%"] if kind == "Pareto" else [claim]
    over = "rate=1,2" if kind == "Monotonicity" else ""
    return hypothesis(family=family, type=kind, vvuq=category, predictions=predictions, over=over)


@pytest.mark.parametrize(("family", "kind"), list(itertools.product(TYPES_OF, TYPES)))
def test_pairs_of_family_and_type(family: str, kind: str) -> None:
    category = "Verification" if kind == "Deterministic" else "Validation"
    if (family, kind) in ALLOWED:
        assert of_kind(family, kind, category).type == kind
    else:
        with pytest.raises(ConfigError, match=f"type {kind} does not go with family"):
            of_kind(family, kind, category)


@pytest.mark.parametrize("category", CATEGORIES)
def test_pairs_of_category_and_type(category: str) -> None:
    for kind in ("Deterministic", "Dominance"):
        if (category == "Verification") == (kind == "Deterministic"):
            assert of_kind("Structural model", kind, category).vvuq == category
        else:
            with pytest.raises(ConfigError, match=f"category {category} does not go with type"):
                of_kind("Structural model", kind, category)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"predictions": ["ttft_p99_ms in -5..5%"]}, "which way something changes"),
        ({"predictions": ["ttft_p99_ms <= 100"]}, "put a % into"),
        ({"vvuq": "UQ"}, "leave the % out"),
        ({"type": "Equivalence"}, "what stays"),
        ({"type": "Equivalence", "predictions": ["ttft_p99_ms in -8..8%"]}, "within 5 %"),
        ({"type": "Equivalence", "predictions": ["ttft_p99_ms in 1..5%"]}, "within 5 %"),
        ({"type": "Pareto"}, "two metrics or more"),
        ({"predictions": ["ttft_p99_ms falls"]}, "needs --over"),
        ({"over": "rate=1,2"}, "needs --over"),
        ({"predictions": ["ttft_p98_ms <= -5%"]}, "is unknown"),
        ({"id": "a/b"}, "id"),
        ({"diagnostic": ""}, "diagnostic"),
        ({"registered": "retrospective"}, "needs an origin"),
        ({"published": ["ttft_p99_ms = 1"]}, "belong to retrospective"),
        ({"family": "Other"}, "family 'Other' is unknown"),
        (
            {"seeds": [1, 2, 4], "stopping": {"decides": True, "most_seeds": 40}},
            "the seeds are no range",
        ),
        ({"seeds": [], "predictions": [], "stopping": {"most_seeds": 40}}, "give --predict"),
    ],
)
def test_refusals(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        hypothesis(**changes)


def test_names_in_any_form() -> None:
    assert {family_named(name) for name in SHORT_FAMILIES} == set(TYPES_OF)
    assert family_named("Cross-Policy Comparative") == "Cross-policy comparative"
    assert type_named("dominance") == "Dominance"


def test_iterations() -> None:
    assert hypothesis(id="8-opt").iteration == "8" and hypothesis(id="idea").iteration == "idea"


def test_resolutions_follow_the_verdict() -> None:
    for name, verdicts in RESOLUTIONS.items():
        for verdict in ("confirmed", "refuted", "inconclusive"):
            if verdict in verdicts:
                check_resolution(name, verdict)
            else:
                with pytest.raises(ConfigError, match="does not go with the verdict"):
                    check_resolution(name, verdict)
    with pytest.raises(ConfigError, match="did you mean 'Clean confirmation'") as refused:
        check_resolution("Clean confirmatoin", "confirmed")
    assert str(refused.value).count("did you mean") == 1
