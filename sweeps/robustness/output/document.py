"""What a robustness map says, for programs: one JSON document."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import xarray as xr

from sweeps.robustness.output.report import by_axis, cell_table, constraints_of, labels_of
from sweeps.robustness.output.rules import Rules
from sweeps.robustness.verdict import NUM_RESAMPLES, REASONS, inference_of


def to_document(verdicts: xr.Dataset, rules: Rules, lines: Sequence[str]) -> dict[str, Any]:
    """The recommendations as JSON: by regime, by axis, by cell."""
    attributes = verdicts.attrs
    counts = Counter(verdicts["recommended"].values.tolist())
    reasons = Counter(verdicts["reason"].values.tolist())
    return {
        "strategies": verdicts["strategy"].values.tolist(),
        "objective": attributes["objective"],
        "constraints": constraints_of(verdicts),
        "confidence": attributes["confidence"],
        "seeds": verdicts["seed"].values.tolist(),
        "reference_cell": json.loads(attributes["reference_cell"]),
        "method": {
            "intervals": inference_of(verdicts).method,
            "probability": f"share of {NUM_RESAMPLES} bootstrap resamples of the seeds, the same "
            "for all strategies, in which a strategy is best within the constraints",
            "note": "every cell stands for itself; nothing is corrected for their number",
        },
        "num_cells": verdicts.sizes["cell"],
        "recommended": {label: counts[label] for label in labels_of(verdicts)},
        "reasons": {reason: reasons[reason] for reason in REASONS},
        "summary": list(lines),
        "regimes": {
            "depth": rules.depth,
            "cross_validated_accuracy": _finite(rules.accuracy),
            "accuracy_of_most_frequent": _finite(rules.accuracy_of_most_frequent),
            "num_folds": rules.num_folds,
            "rules": [
                {
                    "where": [vars(condition) for condition in rule.where],
                    "words": rule.words(),
                    "recommended": rule.label,
                    "num_cells": rule.num_cells,
                    "counts": dict(rule.counts),
                }
                for rule in rules.leaves
            ],
        },
        "by_axis": _records(by_axis(verdicts)),
        "cells": _records(cell_table(verdicts)),
    }


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[Mapping[Any, Any]] = table.to_dict("records")
    return [
        {str(k): _finite(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
