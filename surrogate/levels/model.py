"""What seeds do to a metric: a level that their requests explain, and the noise that is left, from which intervals
come.

A run's distance from its point's mean over the pool, in units of the sd of single runs there, is
regressed on the covariates of its requests and on their products with the point's features. The mean
over any seeds needs only the mean of their covariates. A baseline has a regression of its own, so the
difference from it is predicted too. Where the baseline is simulated on the seeds, what it did there stands
beside the covariates in a second regression, and the difference is from what was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from blis_jax.core.types import CRITICAL, SHEDDABLE, STANDARD
from blis_jax.lazy import special
from blis_jax.workload.table import NEVER_US, RequestTable

# what is known of the seeds: their requests, nothing, or their requests and the baseline's runs
GIVEN, UNKNOWN, SIMULATED = MODES = ("given", "unknown", "simulated")
LEVEL, DIFFERENCE = KINDS = ("level", "difference")
RUNGS = (1, 2, 4, 8, 16, 32)  # seeds of a mean that scores are kept for
FOLDS = 5
# of covariates, of their products with features, and of features alone
PENALTIES = (
    (1.0, 100.0, 1.0), (10.0, 100.0, 1.0), (10.0, 1e3, 1.0), (100.0, 1e3, 1.0), (100.0, 1e4, 1.0), (100.0, 1e5, 1.0),
    (10.0, 1e3, 1e3), (100.0, 1e4, 1e3), (100.0, 1e5, 1e3), (10.0, 1e7, 1e7), (100.0, 1e7, 1e7),
)  # fmt: skip
LEAST_SPREAD = 1e-9
SETS = 0.9  # of all sets of seeds, on which at least so many points lie in their intervals


def _nothing() -> np.ndarray:
    return np.zeros(0)


class Noise(NamedTuple):
    """The noise that covariates leave, by output: sd of runs at a point, in their units of sd; sd at the baseline, in
    the output's unit; and the correlation of both.
    """

    own: np.ndarray
    baseline: np.ndarray
    correlation: np.ndarray


@dataclass(frozen=True)
class Levels:
    """Regressions of levels on seeds' covariates, standardised as (covariate − `center`) ÷ `spread`; `center` is the
    mean of the pool's seeds.
    """

    center: np.ndarray  # [covariate]
    spread: np.ndarray  # [covariate]
    typical: np.ndarray  # [covariate], mean over many seeds, in those units
    weights: np.ndarray  # [1 + covariate, 1 + feature, output]
    baseline_mean: np.ndarray  # [output], of the baseline over the pool, in units
    baseline_weights: np.ndarray  # [1 + covariate, output], in units
    noise: Mapping[str, Noise]  # by mode
    scores: Mapping[str, np.ndarray]  # by "mode kind rung", [output, point]
    region: np.ndarray  # [point] of the calibration
    baseline: str = ""
    workload: str = ""  # as JSON, whose seeds are meant
    rate_rps: float = 0.0
    stream: str = "jax"  # who draws the requests
    baseline_spread: np.ndarray = field(default_factory=_nothing)  # [output], in units
    # [1 + covariate + output, 1 + feature, output]
    beside: np.ndarray = field(default_factory=_nothing)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the baseline; none if not known
    targets: Mapping[str, Any] = field(default_factory=dict)  # SLO targets; none: the default ones

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the modes of MODES that have scores; a surrogate of an earlier version lacks the last mode."""
        return tuple(mode for mode in MODES if mode in self.noise)

    def standard(self, covariates: np.ndarray, baseline: np.ndarray | None = None) -> np.ndarray:
        """Return the covariates, and behind them the baseline's outputs if given, in units of their spread.

        Covariates that never vary are 0.
        """
        of_requests = _in_units(covariates, self.center, self.spread)
        if baseline is None:
            return of_requests
        runs = _in_units(baseline, self.baseline_mean, self.baseline_spread)
        return np.concatenate([of_requests, runs], axis=-1)

    def shift(self, phi: np.ndarray, level: np.ndarray, mode: str = GIVEN) -> np.ndarray:
        """Return how far means lie from the pool's, in sd of runs, `[point, output]`.

        `phi[point, 1 + feature]`; `level` is what `standard` gives, `[covariate]` or `[point, covariate]`.
        """
        weights = self.beside if mode == SIMULATED else self.weights
        terms = np.concatenate([np.ones((*level.shape[:-1], 1)), level], axis=-1)
        if terms.ndim == 1:
            return np.asarray(phi @ np.einsum("c,cfo->fo", terms, weights))
        return np.asarray(np.einsum("pc,pf,cfo->po", terms, phi, weights, optimize=True))

    def baseline_at(self, level: np.ndarray) -> np.ndarray:
        """Return the baseline's mean in the outputs' units, `[..., output]`."""
        terms = np.concatenate([np.ones((*level.shape[:-1], 1)), level], axis=-1)
        return np.asarray(self.baseline_mean + terms @ self.baseline_weights)

    def sigma(
        self, mode: str, kind: str, fixed: np.ndarray, run_sd: np.ndarray, num_seeds: int
    ) -> np.ndarray:
        """Return the uncertainty of a mean over `num_seeds` seeds, `[point, output]`; its part `fixed` does not shrink
        with their number.
        """
        noise = self.noise[mode]
        sd = noise.own * run_sd
        square = np.square(sd)
        if kind == DIFFERENCE:
            square = square + np.square(noise.baseline)
            square = square - 2 * noise.correlation * sd * noise.baseline
        return np.asarray(np.sqrt(np.square(fixed) + np.maximum(square, 0.0) / num_seeds))

    def shared(
        self, mode: str, fixed: np.ndarray, run_sd: np.ndarray, num_seeds: int
    ) -> np.ndarray:
        """Return the share of the variance of a mean over seeds that comes from the seeds, `[point, output]`.

        All points of one set of seeds may have this part in common.
        """
        whole = np.square(self.sigma(mode, LEVEL, fixed, run_sd, num_seeds))
        return np.asarray(1 - np.square(fixed) / np.maximum(whole, LEAST_SPREAD**2))

    def rung(self, num_seeds: int) -> int:
        """Return the number of seeds whose scores serve a mean over `num_seeds`: the greatest of the rungs up to
        `num_seeds`.
        """
        kept = {int(name.rpartition(" ")[2]) for name in self.scores}
        return max(count for count in kept if count <= num_seeds)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays as a tree for a checkpoint."""
        names = (
            "center",
            "spread",
            "typical",
            "weights",
            "baseline_mean",
            "baseline_weights",
            "region",
            "baseline_spread",
            "beside",
        )
        every = {name: getattr(self, name) for name in names}
        tree: dict[str, Any] = {name: array for name, array in every.items() if array.size}
        tree["noise"] = {mode: noise._asdict() for mode, noise in self.noise.items()}
        tree["scores"] = {name: array.astype(np.float32) for name, array in self.scores.items()}
        return tree

    def document(self) -> dict[str, Any]:
        """Return everything but the arrays, as plain data."""
        return {
            "baseline": self.baseline,
            "workload": self.workload,
            "rate_rps": self.rate_rps,
            "stream": self.stream,
            "settings": dict(self.settings),
            "targets": dict(self.targets),
        }

    @staticmethod
    def read(tree: Mapping[str, Any], document: Mapping[str, Any]) -> Levels:
        """Read levels from the tree of arrays and the document."""
        arrays: dict[str, Any] = {
            name: np.asarray(tree[name]) for name in tree if name not in ("noise", "scores")
        }
        noise = {
            mode: Noise(**{name: np.asarray(array) for name, array in of_mode.items()})
            for mode, of_mode in tree["noise"].items()
        }
        scores = {name: np.asarray(array) for name, array in tree["scores"].items()}
        return Levels(**arrays, noise=noise, scores=scores, **document)


def least_held(shared: np.ndarray, confidence: float) -> np.ndarray:
    """Return the share of points that lie in their intervals on nine of ten sets of seeds, at least.

    Args:
        shared: the share of the variance of their errors that all points of a set have in common; errors are normal.
        confidence: of the intervals, each for one point on any seeds.
    """
    shared = np.clip(shared, 0.0, 1 - LEAST_SPREAD)
    reach = special.ndtri((1 + confidence) / 2)
    off, own = np.sqrt(shared) * special.ndtri((1 + SETS) / 2), np.sqrt(1 - shared)
    return np.asarray(special.ndtr((reach - off) / own) - special.ndtr((-reach - off) / own))


def _in_units(values: np.ndarray, center: np.ndarray, spread: np.ndarray) -> np.ndarray:
    is_varying = spread > LEAST_SPREAD
    standard = (values - center) / np.where(is_varying, spread, 1.0)
    return np.asarray(np.where(is_varying, standard, 0.0))


def key(mode: str, kind: str, rung: int) -> str:
    """Name the scores of a mode, kind and rung; beside a simulated baseline, differences share the metric's scores."""
    return f"{mode} {LEVEL if mode == SIMULATED else kind} {rung}"


def regress(
    phi: np.ndarray,
    level: np.ndarray,
    target: np.ndarray,
    fold: np.ndarray,
    point: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return ridge weights `[1 + covariate, 1 + feature, output]`, and residuals `[run, output]` of folds left out.

    Every run has `phi[run, 1 + feature]`, standard covariates and the fold of its seed. Each output gets the penalties
    that best predict runs outside the fit: the left-out fold's seeds or, if `point[run]` is given, means over other
    seeds at other points, each point in one fold's turn. Runs that have no turn leave NaN.
    """
    terms = np.concatenate([np.ones((len(level), 1)), level], axis=1)
    design = (terms[:, :, None] * phi[:, None, :]).reshape(len(level), -1)
    own_turn = fold if point is None else point % FOLDS
    if not (own_turn == fold).any():  # a handful of runs
        own_turn = fold
    is_tried = [(fold == out) & (own_turn == out) for out in range(FOLDS)]
    fitted = [design[(fold != out) & (own_turn != out)] for out in range(FOLDS)]
    sides = [rows.T @ target[(fold != out) & (own_turn != out)] for out, rows in enumerate(fitted)]
    grams = [rows.T @ rows for rows in fitted]
    gram, side = design.T @ design, design.T @ target
    groups = np.arange(len(level)) if point is None else point
    shape = (terms.shape[1], phi.shape[1])
    best_left = np.full(target.shape, np.nan)
    best, weights = np.full(target.shape[1], np.inf), np.zeros((design.shape[1], target.shape[1]))
    for main, product, constant in PENALTIES:
        penalty = np.full(shape, product)
        penalty[:, 0], penalty[0] = main, constant
        penalty[0, 0] = 1.0
        ridge = np.diag(penalty.ravel())
        left = np.full(target.shape, np.nan)
        for out, tried in enumerate(is_tried):
            coefficients = np.linalg.solve(grams[out] + ridge, sides[out])
            left[tried] = target[tried] - design[tried] @ coefficients
        error = np.square(_by_group(left, groups)).mean(axis=0)
        is_better = error < best
        if is_better.any():
            whole = np.linalg.solve(gram + ridge, side[:, is_better])
            weights[:, is_better], best_left[:, is_better] = whole, left[:, is_better]
        best = np.where(is_better, error, best)
    return weights.reshape(*shape, -1), best_left


def _by_group(left: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the means of the rows that are not NaN, by group, `[group, output]`."""
    is_there = ~np.isnan(left).any(axis=1)
    _, places, counts = np.unique(groups[is_there], return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), left.shape[1]))
    np.add.at(sums, places, left[is_there])
    return np.asarray(sums / counts[:, None])


# --- what a seed's requests are like --------------------------------------------------------------
# Beside counts and tokens these are the waits in queues that are far simpler than a cluster: one server
# that works off prompt tokens, or requests, at a fixed rate. Whoever meets a burst waits there too.

CLASSES = {"critical": CRITICAL, "standard": STANDARD, "sheddable": SHEDDABLE}
TOKEN_MS = (8, 10, 12, 16)  # from one output token to the next, by how busy an instance is
WINDOWS_MS = (50, 150)
SERVERS = (0.75, 1.0, 1.35, 2.0)  # a server's rate, in rates of the workload
QUANTILES = (50, 90, 99)
COVARIATES = (
    "span_ms", "longest_output",
    *(f"{what}_at_{token}ms" for token in TOKEN_MS for what in ("last_end", "tokens_per_ms")),
    *(f"most_in_{window}ms" for window in WINDOWS_MS),
    *(f"{what}[{name}]" for name in CLASSES for what in ("requests", "prompt_tokens", "output_tokens")),
    *(f"output_p{q}[{name}]" for name in ("all", *CLASSES) for q in QUANTILES),
    *(f"wait_at_{share:g}_{what}[{name}]" for share in SERVERS for name in ("all", *CLASSES)
      for what in ("mean", *(f"p{q}" for q in QUANTILES))),
)  # fmt: skip


def covariates(table: RequestTable, rate_rps: float) -> np.ndarray:
    """Compute the numbers that describe one run's requests, `[covariate]`, in the order of COVARIATES.

    `rate_rps` is the rate of the workload that a surrogate was fitted for, by which the imagined servers are sized.
    """
    is_request = np.asarray(table.arrival_us) != NEVER_US
    arrival, prompt, output, slo_class = (
        np.asarray(column)[is_request]
        for column in (table.arrival_us, table.input_len, table.output_len, table.slo_class)
    )
    arrival = arrival / 1000.0
    values = [arrival.max(), output.max()]
    for token in TOKEN_MS:
        last_end = (arrival + token * output).max()
        values += [last_end, output.sum() / last_end]
    places = np.arange(len(arrival))
    for window in WINDOWS_MS:
        values.append((np.searchsorted(arrival, arrival + window) - places).max())
    members = {name: slo_class == code for name, code in CLASSES.items()}
    groups = (np.ones(len(output), bool), *members.values())
    for chosen in members.values():
        values += [chosen.sum(), prompt[chosen].sum(), output[chosen].sum()]
    for chosen in groups:
        values += _quantiles(output[chosen])
    work = prompt / max(float(prompt.mean()), 1.0)
    for share in SERVERS:
        wait = waits(arrival, work * (1000.0 / (share * rate_rps)))
        for chosen in groups:
            here = wait[chosen]
            values += [float(here.mean()) if len(here) else 0.0, *_quantiles(here)]
    return np.array(values, float)


def waits(arrival: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Return how long each request waits for a single server, by Lindley's recursion, all requests at once."""
    ahead = np.concatenate([[0.0], np.cumsum(service)[:-1]]) - arrival
    return np.asarray(ahead - np.minimum.accumulate(ahead))


def _quantiles(values: np.ndarray) -> list[float]:
    return np.percentile(values, QUANTILES).tolist() if len(values) else [0.0] * len(QUANTILES)
