"""Stage 5: reports, the verdicts that they give, and what the gain survives by simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from blis_jax.errors import ConfigError
from blis_jax.files.chain import digest
from sweeps.promote.evidence.hypothesis import (
    ARMS,
    TREATMENT,
    PromotedHypothesis,
    hypotheses_of,
    hypotheses_path,
)
from sweeps.promote.evidence.judging import ArmChange, TransferVerdict, judge
from sweeps.promote.evidence.runs import FOLDER, SceneRuns, scenes_of
from sweeps.promote.promotion import Files, Promotion
from sweeps.promote.store import hashes_of

if TYPE_CHECKING:
    from blis_jax.statistics.intervals import Estimate

VERDICTS = "evidence/verdicts.yaml"
SURVIVAL, SURVIVAL_PAGE = "evidence/survival.yaml", "evidence/survival.md"
_DIGITS = 6


def evidence_files(
    promotion: Promotion, files: Files, options: Mapping[str, Any]
) -> dict[str, str]:
    """Reports, verdicts and the table of what the gain survives.

    Args:
        promotion: the strategy and what it is compared with.
        files: of the earlier stages.
        options: `seeds` of a dry run or `reports` as texts by path; `survival_seeds`, `num_requests`.
    """
    from sweeps.promote.documents.render import render
    from sweeps.promote.evidence.survival import survival_of

    hypotheses = hypotheses_of(files)
    identity = translation_of(files)
    absent: dict[str, str] = {}
    if "reports" in options:
        reports = {f"{FOLDER}/{path}": ended(text) for path, text in options["reports"].items()}
    else:
        reports, absent = _simulated(promotion, hypotheses, options, identity)
    scenes = scenes_of(reports)
    found = judge(hypotheses, scenes, ttft_targets(promotion), absent)
    first = 42
    seeds = range(first, first + options["survival_seeds"])
    table = survival_of(promotion, seeds, options["num_requests"])
    command = f"python -m sweeps.promote survival {promotion.given} --seeds {len(seeds)}"
    return {
        **reports,
        VERDICTS: _yaml(verdicts_document(found, scenes, identity)),
        SURVIVAL: _yaml(table.plain()),
        SURVIVAL_PAGE: render("survival.md.j2", table=table, command=command),
    }


def ended(text: str) -> str:
    """A text with an end of line."""
    return text if text.endswith("\n") else f"{text}\n"


def translation_of(files: Files) -> str:
    """The identity of a translation: of all files that were made before the hypotheses."""
    folder = hypotheses_path(files).rpartition("/")[0]
    before = {
        path: text
        for path, text in files.items()
        if not path.startswith(("tests/", "evidence/", "gates/", "profiles/"))
        and path.rpartition("/")[0] != (folder or "/")
        and path != hypotheses_path(files)
    }
    return digest(hashes_of(before))[:16]


def ttft_targets(promotion: Promotion) -> dict[str, float]:
    """What is in time, by class: the strategy's targets, else the usual ones; ms."""
    from blis_jax.metrics.measure import DEFAULT_TARGETS
    from sweeps.runs.bench import targets_of

    strategy = promotion.arm.strategy
    targets = DEFAULT_TARGETS if strategy is None else targets_of(strategy)
    return {name: limits["ttft_ms"] for name, limits in targets.items() if "ttft_ms" in limits}


def _simulated(
    promotion: Promotion,
    hypotheses: Sequence[PromotedHypothesis],
    options: Mapping[str, Any],
    identity: str,
) -> tuple[dict[str, str], dict[str, str]]:
    """The reports of all scenes, and why a scene has none."""
    from sweeps.promote.evidence.scenes import scene_of
    from sweeps.promote.evidence.simulation import simulate

    arms = {arm: promotion.baseline.config for arm in ARMS if arm != TREATMENT}
    arms[TREATMENT] = promotion.arm.config
    reports: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name, one in {each.scene: each for each in hypotheses}.items():
        try:
            scene = scene_of(one.whole, name, promotion, options["num_requests"])
            made = simulate(scene, arms, options["seeds"], identity)
        except ConfigError as error:
            absent[name] = str(error)
            continue
        if not made:
            absent[name] = "on no seed did every arm come to its end"
        reports |= made
    return reports, absent


# --- the verdicts as data -------------------------------------------------------------------------


def verdicts_document(
    found: Sequence[TransferVerdict], scenes: Mapping[str, SceneRuns], identity: str
) -> dict[str, Any]:
    """The verdicts with everything that a document says of them, as plain values."""
    runs = [run for arms in scenes.values() for of_arm in arms.values() for run in of_arm.values()]
    ids = sorted({uid for run in runs for uid in run.uids})
    clusters = sorted(
        {str(one.at("run.cid")) for run in runs for one in run.reports if one.at("run.cid")}
    )
    kinds = sorted({run.evidence for run in runs}) or ["simulated"]
    return {
        "evidence": kinds[0] if len(kinds) == 1 else "mixed",
        "identities": {"translation": identity, "cluster": clusters, "run": digest(ids)[:16]},
        "num_reports": sum(len(run.reports) for run in runs),
        "verdicts": [_verdict(one) for one in found],
    }


def _verdict(one: TransferVerdict) -> dict[str, Any]:
    hypothesis = one.hypothesis
    return {
        "id": hypothesis.id,
        "track": hypothesis.track,
        "verdict": one.verdict,
        "status": one.status,
        "evidence": one.evidence,
        "problem": one.problem,
        "reason": one.reason,
        "scene": hypothesis.scene,
        "metric": {
            "path": hypothesis.metric.path,
            "statistic": hypothesis.metric.statistic,
            "unit": hypothesis.metric.unit,
            "better": hypothesis.metric.better,
        },
        "expected": hypothesis.direction,
        "tolerance_percent": hypothesis.tolerance_percent,
        "changes": {name: _change(change) for name, change in one.changes.items()},
        "run_ids": list(one.run_ids),
    }


def _change(change: ArmChange) -> dict[str, Any]:
    return {
        "first_mean": rounded(change.first_mean),
        "second_mean": rounded(change.second_mean),
        "percent": _interval(change.percent),
        "num_runs": change.num_runs,
        "num_as_expected": change.num_as_expected,
    }


def _interval(found: Estimate) -> dict[str, Any]:
    return {name: rounded(getattr(found, name)) for name in ("mean", "low", "high")}


def rounded(value: float) -> float | None:
    """With six decimals; None for what is no number."""
    import math

    return round(value, _DIGITS) if math.isfinite(value) else None


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=110)
