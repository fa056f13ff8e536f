"""The words of hypotheses: families, types, categories, kinds of evidence, resolutions."""

from __future__ import annotations

WORKLOAD, INVARIANTS = "Workload/arrival", "Scheduler invariants"
PERFORMANCE, STRUCTURAL = "Performance-regime", "Structural model"
ROBUSTNESS, CROSS_POLICY = "Robustness/failure-mode", "Cross-policy comparative"
DETERMINISTIC, DOMINANCE, MONOTONICITY = "Deterministic", "Dominance", "Monotonicity"
EQUIVALENCE, PARETO = "Equivalence", "Pareto"
VERIFICATION, VALIDATION, UQ = "Verification", "Validation", "UQ"
TYPES = (DETERMINISTIC, DOMINANCE, MONOTONICITY, EQUIVALENCE, PARETO)
CATEGORIES = (VERIFICATION, VALIDATION, UQ)
TYPES_OF: dict[str, tuple[str, ...]] = {
    WORKLOAD: (DETERMINISTIC, DOMINANCE, MONOTONICITY),
    INVARIANTS: (DETERMINISTIC,),
    PERFORMANCE: (MONOTONICITY, EQUIVALENCE, PARETO),
    STRUCTURAL: (DETERMINISTIC, DOMINANCE, MONOTONICITY),
    ROBUSTNESS: (DETERMINISTIC, DOMINANCE),
    CROSS_POLICY: (DOMINANCE, EQUIVALENCE, PARETO),
}
SHORT_FAMILIES = {
    "workload": WORKLOAD,
    "invariants": INVARIANTS,
    "performance": PERFORMANCE,
    "structural": STRUCTURAL,
    "robustness": ROBUSTNESS,
    "cross-policy": CROSS_POLICY,
}
BEFORE, RETROSPECTIVE = "before-run", "retrospective"
REFERENCE_RUNS, JAX_RUNS = "simulation-reference-streams", "simulation-jax-streams"
PUBLISHED, JUDGE = "published-claim", "judge"
EVIDENCE = (REFERENCE_RUNS, JAX_RUNS, PUBLISHED, JUDGE)
RESOLUTIONS: dict[str, tuple[str, ...]] = {  # with the verdicts that they go with
    "Clean confirmation": ("confirmed",),
    "Confirmation with wrong mechanism": ("confirmed",),
    "Confirmation with bug discovery": ("confirmed",),
    "Partial confirmation with surprise": ("confirmed", "refuted", "inconclusive"),
    "Refuted - mechanism not plausible": ("refuted",),
    "Refuted - system design flaw": ("refuted",),
    "Refuted - wrong mental model": ("refuted",),
    "Inconclusive - parameter-dependent": ("inconclusive",),
    "Converged to open question": ("confirmed", "refuted", "inconclusive"),
}
