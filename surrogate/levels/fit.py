"""What seeds do, fitted to runs on seeds of their own, calibrated, and held against further such runs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from blis_jax.errors import ConfigError, reads_store
from blis_jax.reports.render import table_lines
from blis_jax.results.dataset import load_kind
from surrogate.columns import BEST, BRANCH, REGIONS, WHOLE, factors_by_region, scores
from surrogate.data import (
    BRANCH_CALIBRATION,
    BRANCH_TEST,
    CALIBRATION,
    OWN_KIND,
    TEST,
    TRAIN,
    Data,
    Part,
    SeedTable,
    refuse_unfinished,
    seed_table,
    with_failures,
)
from surrogate.levels.model import (
    DIFFERENCE,
    FOLDS,
    GIVEN,
    KINDS,
    LEVEL,
    MODES,
    RUNGS,
    SIMULATED,
    UNKNOWN,
    Levels,
    Noise,
    key,
    regress,
)
from surrogate.levels.predict import LevelParts, levels_of, means, predicted
from surrogate.scores import is_within, r_squared

if TYPE_CHECKING:
    from surrogate.predictor import Surrogate


def with_levels(surrogate: Surrogate, data: Data, own_data: OwnData) -> Surrogate:
    """Return the surrogate with levels, so that it also predicts for seeds outside its pool."""
    fitted = dataclasses.replace(surrogate, levels=_fitted(surrogate, data, own_data))
    return dataclasses.replace(surrogate, levels=_calibrated(fitted, own_data))


def _fitted(surrogate: Surrogate, data: Data, own_data: OwnData) -> Levels:
    assert data.seeds is not None
    learned = surrogate.scales.is_learned
    pool = data.seeds.of(np.isin(data.seeds.seeds, data.pool))
    empty = np.zeros(0)
    blank = Levels(
        pool.covariates.mean(axis=0), own_data.seeds.covariates.std(axis=0), empty, empty,
        pool.baseline[:, learned].mean(axis=0), empty, {}, {}, empty, pool.name, data.workload,
        float(json.loads(data.workload)["aggregate_rate"]), data.stream,
        own_data.seeds.baseline[:, learned].std(axis=0), empty, data.baseline, data.targets,
    )  # fmt: skip
    every = blank.standard(own_data.seeds.covariates)
    simulated = blank.standard(own_data.seeds.covariates, own_data.seeds.baseline[:, learned])
    parts, train = LevelParts(surrogate, own_data.train.inputs), own_data.train
    count = train.at.shape[1]
    target = (train.runs[..., learned] - parts.mean[:, None]) / parts.run_sd[:, None]
    target = target.reshape(-1, target.shape[2])
    at = train.at.ravel()
    is_there = ~np.isnan(target).any(axis=1)
    at, target, phi = at[is_there], target[is_there], np.repeat(parts.phi, count, axis=0)[is_there]
    point = np.repeat(np.arange(len(train.at)), count)[is_there]
    weights, left = regress(phi, every[at], target, at % FOLDS, point)
    beside, left_beside = regress(phi, simulated[at], target, at % FOLDS, point)
    used = np.unique(at)
    of_baseline = own_data.seeds.baseline[used][:, learned] - blank.baseline_mean
    scale = np.maximum(of_baseline.std(axis=0), 1e-12)
    constant = np.ones((len(used), 1))
    bare, bare_left = regress(constant, every[used], of_baseline / scale, used % FOLDS)
    place = np.searchsorted(used, at)
    total = of_baseline - of_baseline.mean(axis=0)
    noise = {
        GIVEN: _noise(left, (bare_left * scale)[place]),
        UNKNOWN: _noise(target - _by_point(target, phi), total[place]),
        SIMULATED: _noise(left_beside, np.zeros_like(left_beside)),
    }
    return dataclasses.replace(
        blank, typical=every.mean(axis=0), weights=weights, noise=noise,
        baseline_weights=bare[:, 0] * scale, beside=beside,
    )  # fmt: skip


def _by_point(target: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Return the part of the targets that the points' features explain, without the seeds."""
    coefficients = np.linalg.lstsq(phi, target, rcond=None)[0]
    return np.asarray(phi @ coefficients)


def _noise(runs: np.ndarray, baseline: np.ndarray) -> Noise:
    """Return sd and correlation of the residuals of runs and of the baseline's runs on their seeds, `[run, output]`.

    Runs that were never left out of a fit have NaN and do not count.
    """
    is_there = ~np.isnan(runs).any(axis=1)
    runs, baseline = runs[is_there], baseline[is_there]
    sds = runs.std(axis=0), baseline.std(axis=0)
    both = (runs * baseline).mean(axis=0) - runs.mean(axis=0) * baseline.mean(axis=0)
    return Noise(*sds, both / np.maximum(sds[0] * sds[1], 1e-30))


def _calibrated(surrogate: Surrogate, own_data: OwnData) -> Levels:
    """Return the levels with the scores of the calibration points, for means over 1, 2, 4, … seeds."""
    levels, part = surrogate.levels, own_data.calibration
    assert levels is not None
    parts = LevelParts(surrogate, part.inputs)
    scores_by_key = {}
    for mode in MODES:
        for rung in (rung for rung in RUNGS if rung <= part.at.shape[1]):
            off = residuals(surrogate, parts, part, own_data, mode, rung)
            for kind in KINDS if mode != SIMULATED else (LEVEL,):
                sigma = levels.sigma(mode, kind, parts.fixed, parts.run_sd, rung)
                scores_by_key[key(mode, kind, rung)] = scores(off[kind], sigma)
    return dataclasses.replace(levels, scores=scores_by_key, region=parts.region.astype(np.int32))


def residuals(
    surrogate: Surrogate, parts: LevelParts, part: OwnPart, own_data: OwnData, mode: str, rung: int
) -> dict[str, np.ndarray]:
    """Return simulated less predicted means over the first `rung` seeds of each point, `[point, output]`, by kind."""
    simulated, mean, baseline = on_own_seeds(surrogate, parts, part, own_data, mode, rung)
    learned = surrogate.scales.is_learned
    on_baseline = own_data.seeds.baseline[part.at[:, :rung]][..., learned].mean(axis=1)
    level = simulated - mean
    return {KINDS[0]: level, DIFFERENCE: level - (on_baseline - baseline)}


def on_own_seeds(
    surrogate: Surrogate, parts: LevelParts, part: OwnPart, own_data: OwnData, mode: str, rung: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return simulated and predicted means over each point's first `rung` seeds, and the baseline's means, known or
    predicted.
    """
    levels = surrogate.levels
    assert levels is not None
    learned = surrogate.scales.is_learned
    simulated = part.runs[:, :rung, learned].mean(axis=1)
    at, level, baseline = part.at[:, :rung], levels.typical, None
    if mode == GIVEN:
        level = levels.standard(own_data.seeds.covariates)[at].mean(axis=1)
    elif mode == SIMULATED:
        runs = own_data.seeds.baseline[:, learned]
        level = levels.standard(own_data.seeds.covariates, runs)[at].mean(axis=1)
        baseline = runs[at].mean(axis=1)
    return simulated, *means(surrogate, parts, level, mode, baseline)


# --- runs on seeds of their own -------------------------------------------------------------------
# As `sweeps.dataset --own-seeds` writes them. The layout is that of `surrogate.data`, but the dim `seed` has places
# only: `run_seed[point, seed]` are the seeds. No seed of one role comes in another, and none in the pool of the dataset
# that goes with it.


@dataclass(frozen=True)
class OwnPart:
    """Points of one role: inputs, runs `[point, run, output]`, and each run's index in the table of seeds."""

    inputs: np.ndarray
    runs: np.ndarray
    at: np.ndarray  # [point, run]


@dataclass(frozen=True)
class OwnData:
    """Runs on seeds of each point's own, in memory; calibration and test points of the branch are among the others."""

    train: OwnPart
    calibration: OwnPart
    test: OwnPart
    seeds: SeedTable
    num_runs: int
    world: str


@reads_store("make the dataset again")
def load_own(path: str | Path, data: Data) -> OwnData:
    """Read the runs on other seeds that go with a dataset; refuse runs of another world, or on its own seeds."""
    dataset = load_kind(path, OWN_KIND, "the .zarr that sweeps.dataset --own-seeds writes")
    outcome, role = dataset["outcome"].values, dataset["role"].values
    refuse_unfinished(path, outcome)
    world = str(dataset.attrs.get("world", ""))
    if data.seeds is None:
        raise ConfigError(
            f"{path} cannot be used with a dataset that has no baseline; make that again with the same --baseline"
        )
    if world != data.world:
        raise ConfigError(
            f"{path} was made with another strategy, workload, baseline or version than the dataset; make "
            "both with the same options"
        )
    names = [str(name) for name in dataset["metric"].values]
    units = [str(unit) for unit in dataset["unit"].values]
    values, names, _ = with_failures(dataset["value"].values, outcome, names, units)
    seeds = seed_table(dataset, values)
    assert seeds is not None
    both = np.intersect1d(seeds.seeds, data.seeds.seeds)
    if len(both):
        raise ConfigError(
            f"{path} has seed {both[0]}, which the dataset has too; make it with another --first-seed"
        )
    run_seed, inputs = dataset["run_seed"].values, dataset["inputs"].values

    def part(*roles: str) -> OwnPart:
        """Return the points of some roles all of whose seeds have a run of the baseline."""
        chosen = np.isin(role, roles) & np.isin(run_seed, seeds.seeds).all(axis=1)
        return OwnPart(inputs[chosen], values[chosen], seeds.places(run_seed[chosen]))

    return OwnData(
        part(TRAIN), part(CALIBRATION, BRANCH_CALIBRATION), part(TEST, BRANCH_TEST), seeds,
        int((outcome >= 0).sum()), world,
    )  # fmt: skip


# --- how often the intervals hold -----------------------------------------------------------------

COUNTS = (32, 1)  # seeds of a mean
NEAR = 0.04 + 1e-12  # of the confidence


def any_seeds_table(surrogate: Surrogate, own_data: OwnData, confidence: float) -> pd.DataFrame:
    """Return coverage by output, kind of interval, knowledge of the seeds, their number and region.

    Beside a simulated baseline, the difference is covered whenever the metric is, so it has no rows.

    `r2` is the R² of the means, `half_width` the median over points in the output's unit. The region of the whole space
    has the points drawn all over it; points added in the branch are a region of their own.
    """
    levels, part = levels_of(surrogate), own_data.test
    parts = LevelParts(surrogate, part.inputs)
    learned = surrogate.scales.is_learned
    outputs = [name for name, flag in zip(surrogate.outputs, learned, strict=True) if flag]
    rows = []
    for mode in levels.modes:
        for count in (count for count in COUNTS if count <= part.at.shape[1]):
            simulated, mean, baseline = on_own_seeds(surrogate, parts, part, own_data, mode, count)
            on_baseline = own_data.seeds.baseline[part.at[:, :count]][..., learned].mean(axis=1)
            targets = {LEVEL: simulated, DIFFERENCE: simulated - on_baseline}
            guesses = {LEVEL: mean, DIFFERENCE: mean - baseline}
            for kind in KINDS if mode != SIMULATED else (LEVEL,):
                of_kind = levels.scores[key(mode, kind, count)]
                reach = factors_by_region(of_kind, levels.region, confidence)[parts.region]
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
    """Write the table of `any_seeds_table` in Markdown, over all outputs."""
    parts = table.groupby(["seeds", "interval", "num_seeds", "region"], sort=False)
    return table_lines(
        ("seeds", "interval of the", "seeds in a mean", "region", "points", *SHARE_HEAD),
        ((*key, part["points"].iloc[0], *share_cells(part["share"])) for key, part in parts),
    )


SHARE_HEAD = ("covered, least to most", "median", "outputs within 86 to 94 %")


def share_cells(share: pd.Series) -> tuple[str, str, str]:
    """Write the least and greatest share, the median, and how many shares lie from 86 to 94 %."""
    is_near = (share - 0.9).abs() <= NEAR
    reach = f"{share.min():.3f} to {share.max():.3f}"
    return reach, f"{share.median():.3f}", f"{int(is_near.sum())} of {len(share)}"


def unexplained_table(surrogate: Surrogate, own_data: OwnData) -> pd.DataFrame:
    """Return the share of the variance over seeds that the covariates leave unexplained, by output.

    `at_baseline`: of the baseline's runs on seeds that no fit has seen; `at_points`: of single runs at the test points,
    each in units of its point's sd, against a prediction that does not know the seed; `beside_baseline`: the same where
    the baseline's run on the seed is known too.
    """
    levels, learned = levels_of(surrogate), surrogate.scales.is_learned
    is_new = ~np.isin(np.arange(len(own_data.seeds.seeds)), own_data.train.at)
    baseline = own_data.seeds.baseline[is_new][:, learned]
    guess = levels.baseline_at(levels.standard(own_data.seeds.covariates[is_new]))
    spread = baseline.var(axis=0)
    left = np.square(baseline - guess).mean(axis=0) / np.where(spread > 0, spread, np.nan)
    parts = LevelParts(surrogate, own_data.test.inputs)
    squares = {}
    for mode in levels.modes:
        simulated, mean, _ = on_own_seeds(surrogate, parts, own_data.test, own_data, mode, 1)
        squares[mode] = np.square((simulated - mean) / parts.run_sd).mean(axis=0)
    outputs = [name for name, flag in zip(surrogate.outputs, learned, strict=True) if flag]
    columns = {
        "output": outputs,
        "at_baseline": left,
        "at_points": squares[GIVEN] / squares[UNKNOWN],
    }
    if SIMULATED in squares:
        columns["beside_baseline"] = squares[SIMULATED] / squares[UNKNOWN]
    return pd.DataFrame(columns | {"seeds": int(is_new.sum()), "points": len(own_data.test.inputs)})


def common_seeds_table(
    surrogate: Surrogate, part: Part, seeds: np.ndarray, table: SeedTable, confidence: float
) -> pd.DataFrame:
    """Return scores and coverage on points that share sets of 32 seeds outside the pool, one set after the other.

    `part.runs[point, seed, output]` are on `seeds`, whose requests and baseline's runs the table has. Columns without
    an ending are from the requests alone, `_simulated` beside the simulated baseline, and `r2_pool` is without any
    level. All points of a set share their seeds' unknown effects, so a set's coverage may be far from the confidence
    either way.
    """
    levels, learned = levels_of(surrogate), surrogate.scales.is_learned
    parts = LevelParts(surrogate, part.inputs)
    outputs = [name for name, flag in zip(surrogate.outputs, learned, strict=True) if flag]
    size = min(COUNTS[0], len(seeds))
    tables = []
    for first in range(0, len(seeds) - size + 1, size):
        here = table.places(seeds[first : first + size])
        target = np.nanmean(part.runs[:, first : first + size][..., learned], axis=1)
        runs = table.baseline[here][:, learned]
        columns: dict[str, Any] = {
            "first_seed": int(seeds[first]),
            "num_seeds": size,
            "points": len(target),
        }
        columns |= {"output": outputs, "r2_pool": _r2_each(target, parts.mean)}
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
            columns[f"r2{end}"] = _r2_each(target, guess["mean"])
            columns[f"share{end}"] = is_held.mean(axis=0)
            columns[f"share_difference{end}"] = off.mean(axis=0)
            columns[f"half_width{end}"] = np.median(guess["high"] - guess["low"], axis=0) / 2
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _r2_each(target: np.ndarray, guess: np.ndarray) -> list[float]:
    return [r_squared(target[:, at], guess[:, at]) for at in range(target.shape[1])]


def _members(region: np.ndarray) -> dict[str, np.ndarray]:
    """Return the points of each region by name; the whole space has all points outside the branch."""
    branch = REGIONS.index(BRANCH)
    members = {
        WHOLE: region != branch,
        BEST: region == REGIONS.index(BEST),
        BRANCH: region == branch,
    }
    return {name: here for name, here in members.items() if here.any()}
