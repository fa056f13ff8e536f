"""Whether a search finds its way with few parameters more surely than with many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

ENGINE, BATCH, INITIAL = "gp", 5, 10


def spread_ratio(
    strategy: str,
    few: Sequence[str],
    many: Sequence[str],
    calls: int,
    restarts: int,
    settings: Mapping[str, Any] | None = None,
) -> tuple[float, Mapping[str, float]]:
    """Standard deviation of the best scores with `many` parameters ÷ that with `few`.

    Both searches are of the same mechanism and objective, on common seeds; `restarts` are as many
    random states of the search, and `settings` replace some of the mechanism's.
    """
    spreads, parts = [], {}
    for names in (few, many):
        best = best_scores(strategy, names, calls, restarts, settings or {})
        spreads.append(float(np.std(best, ddof=1)))
        parts[f"mean with {len(names)}"] = float(np.mean(best))
        parts[f"spread with {len(names)}"] = spreads[-1]
    return spreads[1] / spreads[0] if spreads[0] else float("nan"), parts


def best_scores(
    strategy: str, names: Sequence[str], calls: int, restarts: int, settings: Mapping[str, Any]
) -> np.ndarray:
    """The best score that each restart finds when only these parameters are searched."""
    from sweeps.runs.bench import Bench, workload_of
    from sweeps.search.engines import make
    from sweeps.search.loop import runs_at, search
    from sweeps.search.objectives import Valuation
    from sweeps.search.racing import best_of
    from sweeps.strategies.file import load_strategy
    from sweeps.strategies.space import space_of

    whole = load_strategy(strategy)
    kept = [place for place, entry in enumerate(whole.parameters) if entry.name in names]
    reduced = whole.model_copy(
        update={
            "mechanism": {**whole.mechanism, **settings},
            "parameters": tuple(whole.parameters[place] for place in kept),
            "parameter_paths": tuple(whole.parameter_paths[place] for place in kept),
        }
    )
    budget = {"engine": ENGINE, "calls": calls, "initial": INITIAL, "batch": BATCH}
    names_needed = Valuation(reduced).names
    bench = Bench(workload_of(reduced), reduced.seeds, "reference", names_needed, None, BATCH)
    found = []
    for state in range(restarts):
        changed = whole.search.model_copy(update={**budget, "random_state": state})
        strategy_now = reduced.model_copy(update={"search": changed})
        space, valuation = space_of(strategy_now), Valuation(strategy_now)
        tried = search(make(space, changed), valuation, runs_at(space, bench))
        best = best_of(tried)
        found.append(best.worth.score if best is not None else np.nan)
    return np.array(found)
