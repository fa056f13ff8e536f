"""The words of hypotheses and of verdicts, each in one place.

Of hypotheses: families, types, categories, kinds of evidence, resolutions. Of verdicts: the words that judges return.
"""

from __future__ import annotations

# --- verdicts -------------------------------------------------------------------------------------

# on hypotheses, first in the coarse words, then in the finer ones of a findings document
CONFIRMED, REFUTED, INCONCLUSIVE = "confirmed", "refuted", "inconclusive"
VERDICTS = (CONFIRMED, REFUTED, INCONCLUSIVE)
WITH_NUANCE, PARTLY = "confirmed with nuance", "partially confirmed"
# on criteria and targets
MET, NOT_MET, MISSED, UNCLEAR = "met", "not met", "missed", "unclear"
NOT_MEASURED, FOR_PEOPLE = "not measured", "for people to judge"
MEETS, FAILS, OPEN = "meets", "fails", "open"
# on principles, and on the claims that they are made of
HOLDS, NARROWER, NOT_SUPPORTED = "holds", "holds, narrower", "not supported"
UNTESTED, PROCESS, STATED = "untested", "process", "stated"
FALSIFIED, BETWEEN, NOT_RUN, REPORTED = "falsified", "between", "not run", "reported"
# of reviewers, from best to worst, and of their consensus
PASS, CONCERN, REJECT = OPINIONS = ("pass", "concern", "reject")
ACCEPTED, REJECTED = "accepted", "rejected"
# on published claims
SURVIVES, DIRECTION, SURVIVES_NOT = "survives", "direction only", "does not survive"
UNDECIDED, NO_FIGURES, UNPUBLISHED = "undecided", "no figures", "nothing published"
LOST, MISSING = "not reconstructible", "mechanism missing"
EXACT, UNLIKE, ONE_SEED = "exact on its seeds", "exact, of unlike runs", "seed 42 only"
OTHER_BASIS, CONTRADICTED, CRASHED = "other basis", "contradicted", "reference crash"
SAYS_SO, SAYS_OTHERWISE = "qualitative, holds", "qualitative, does not hold"
# on published claims without the reference's defects
NEEDS_DEFECTS, NEEDS_NONE = "needs the defects", "holds only without them"
BOTH_SIDES, NEITHER = "direction in both", "holds in neither"

# --- hypotheses -----------------------------------------------------------------------------------

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
PUBLISHED = "published-claim"
RESOLUTIONS: dict[str, tuple[str, ...]] = {  # with the verdicts that they go with
    "Clean confirmation": (CONFIRMED,),
    "Confirmation with wrong mechanism": (CONFIRMED,),
    "Confirmation with bug discovery": (CONFIRMED,),
    "Partial confirmation with surprise": VERDICTS,
    "Refuted - mechanism not plausible": (REFUTED,),
    "Refuted - system design flaw": (REFUTED,),
    "Refuted - wrong mental model": (REFUTED,),
    "Inconclusive - parameter-dependent": (INCONCLUSIVE,),
    "Converged to open question": VERDICTS,
}
