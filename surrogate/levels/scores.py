"""How often intervals for any seeds hold on points whose seeds nothing was fitted to, region by region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.fitting.conformal import factors_by_region
from surrogate.levels.fit import on_own_seeds
from surrogate.levels.model import DIFFERENCE, GIVEN, KINDS, LEVEL, SIMULATED, UNKNOWN, key
from surrogate.levels.predict import Parts, levels_of, predicted
from surrogate.regions import BEST, BRANCH, REGIONS, WHOLE
from surrogate.scores import is_within, r_squared

if TYPE_CHECKING:
    import pandas as pd

    from surrogate.data import Part, SeedTable
    from surrogate.levels.data import OwnData
    from surrogate.predictor import Surrogate

COUNTS = (32, 1)  # seeds of a mean
NEAR = 0.04 + 1e-12  # of the confidence


def any_seeds_table(surrogate: Surrogate, own: OwnData, confidence: float) -> pd.DataFrame:
    """Coverage by output, kind of interval, knowledge of the seeds, their number and region.

    From a simulated baseline the difference is covered where the metric is, so it has no rows of its own.

    `r2` is that of the means, `half_width` the median over points in the output's unit. The whole space
    is the points drawn all over it; those of the branch were added and stand apart.
    """
    import pandas as pd

    levels, part = levels_of(surrogate), own.test
    parts = Parts(surrogate, part.inputs)
    learned = surrogate.scales.is_learned
    outputs = [name for name, flag in zip(surrogate.outputs, learned, strict=True) if flag]
    rows = []
    for mode in levels.modes:
        for count in (count for count in COUNTS if count <= part.at.shape[1]):
            simulated, mean, baseline = on_own_seeds(surrogate, parts, part, own, mode, count)
            on_baseline = own.seeds.baseline[part.at[:, :count]][..., learned].mean(axis=1)
            targets = {LEVEL: simulated, DIFFERENCE: simulated - on_baseline}
            guesses = {LEVEL: mean, DIFFERENCE: mean - baseline}
            for kind in KINDS if mode != SIMULATED else (LEVEL,):
                scores = levels.scores[key(mode, kind, count)]
                reach = factors_by_region(scores, levels.region, confidence)[parts.region]
                half = reach * levels.sigma(mode, kind, parts.fixed, parts.run_sd, count)
                target, guess = targets[kind], guesses[kind]
                is_held = is_within(target, guess - half, guess + half)
                for region, is_here in _members(parts.region).items():
                    for at, output in enumerate(outputs):
                        y = target[is_here, at]
                        rows.append({
                            "output": output, "seeds": mode, "interval": kind, "num_seeds": count,
                            "region": region, "covered": int(is_held[is_here, at].sum()),
                            "points": len(y), "share": float(is_held[is_here, at].mean()),
                            "r2": r_squared(y, guess[is_here, at]),
                            "half_width": float(np.median(half[is_here, at])),
                        })  # fmt: skip
    return pd.DataFrame(rows)


def any_seeds_lines(table: pd.DataFrame) -> list[str]:
    """The same as a table in Markdown, over all outputs."""
    found = [
        "| seeds | interval of the | seeds in a mean | region | points | covered, least to most | median "
        "| outputs within 86 to 94 % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = ["seeds", "interval", "num_seeds", "region"]
    for (seeds, kind, count, region), part in table.groupby(names, sort=False):
        points = part["points"].iloc[0]
        found.append(
            f"| {seeds} | {kind} | {count} | {region} | {points} | {share_cells(part['share'])} |"
        )
    return found


def share_cells(share: pd.Series, confidence: float = 0.9) -> str:
    """Least to most, median, and how many lie within four points of a percent of the confidence."""
    is_near = (share - confidence).abs() <= NEAR
    return f"{share.min():.3f} to {share.max():.3f} | {share.median():.3f} | {int(is_near.sum())} of {len(share)}"


def unexplained_table(surrogate: Surrogate, own: OwnData) -> pd.DataFrame:
    """What the covariates leave of the variance over seeds, as a share, by output.

    `at_baseline`: over seeds that nothing was fitted to; `at_points`: of single runs at the test points,
    each in units of its point's sd, beside a prediction that does not know the seed; `beside_baseline`: the
    same where the baseline's run on the seed is known too.
    """
    import pandas as pd

    levels, learned = levels_of(surrogate), surrogate.scales.is_learned
    is_new = ~np.isin(np.arange(len(own.seeds.seeds)), own.train.at)
    baseline = own.seeds.baseline[is_new][:, learned]
    guess = levels.baseline_at(levels.standard(own.seeds.covariates[is_new]))
    spread = baseline.var(axis=0)
    left = np.square(baseline - guess).mean(axis=0) / np.where(spread > 0, spread, np.nan)
    parts = Parts(surrogate, own.test.inputs)
    squares = {}
    for mode in levels.modes:
        simulated, mean, _ = on_own_seeds(surrogate, parts, own.test, own, mode, 1)
        squares[mode] = np.square((simulated - mean) / parts.run_sd).mean(axis=0)
    outputs = [name for name, flag in zip(surrogate.outputs, learned, strict=True) if flag]
    found = {"output": outputs, "at_baseline": left, "at_points": squares[GIVEN] / squares[UNKNOWN]}
    if SIMULATED in squares:
        found["beside_baseline"] = squares[SIMULATED] / squares[UNKNOWN]
    return pd.DataFrame(found | {"seeds": int(is_new.sum()), "points": len(own.test.inputs)})


def common_seeds_table(
    surrogate: Surrogate, part: Part, seeds: np.ndarray, table: SeedTable, confidence: float
) -> pd.DataFrame:
    """The same on points that share sets of 32 seeds outside the pool, one set after the other.

    `part.runs[point, seed, output]` are on `seeds`, of which the table has requests and the baseline's runs.
    Columns without an ending are from the requests alone, `_simulated` beside the simulated baseline, and
    `r2_pool` without any level. All points of a set share what is unknown of its seeds, so a set's coverage may
    be far from the confidence either way.
    """
    import pandas as pd

    levels, learned = levels_of(surrogate), surrogate.scales.is_learned
    parts = Parts(surrogate, part.inputs)
    outputs = [name for name, flag in zip(surrogate.outputs, learned, strict=True) if flag]
    size = min(COUNTS[0], len(seeds))
    tables = []
    for first in range(0, len(seeds) - size + 1, size):
        here = table.places(seeds[first : first + size])
        target = np.nanmean(part.runs[:, first : first + size][..., learned], axis=1)
        runs = table.baseline[here][:, learned]
        found: dict[str, Any] = {
            "first_seed": int(seeds[first]),
            "num_seeds": size,
            "points": len(target),
        }
        found |= {"output": outputs, "r2_pool": _r2_each(target, parts.mean)}
        on_baseline = runs.mean(axis=0)
        known = {GIVEN: None, SIMULATED: on_baseline}
        for mode in (mode for mode in known if mode in levels.modes):
            end = "" if mode == GIVEN else f"_{mode}"
            level = levels.standard(table.covariates[here], None if mode == GIVEN else runs)
            guess = predicted(
                surrogate, parts, level.mean(axis=0), mode, size, confidence, known[mode]
            )
            is_held = is_within(target, guess["low"], guess["high"])
            off = is_within(target - on_baseline, guess["difference_low"], guess["difference_high"])
            found[f"r2{end}"] = _r2_each(target, guess["mean"])
            found[f"share{end}"] = is_held.mean(axis=0)
            found[f"share_difference{end}"] = off.mean(axis=0)
            found[f"half_width{end}"] = np.median(guess["high"] - guess["low"], axis=0) / 2
        tables.append(pd.DataFrame(found))
    return pd.concat(tables, ignore_index=True)


def _r2_each(target: np.ndarray, guess: np.ndarray) -> list[float]:
    return [r_squared(target[:, at], guess[:, at]) for at in range(target.shape[1])]


def _members(region: np.ndarray) -> dict[str, np.ndarray]:
    """By name, the points of each region; the whole space is all that is not of the branch."""
    branch = REGIONS.index(BRANCH)
    members = {
        WHOLE: region != branch,
        BEST: region == REGIONS.index(BEST),
        BRANCH: region == branch,
    }
    return {name: here for name, here in members.items() if here.any()}
