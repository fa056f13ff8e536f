"""Other regressors on the data of a surrogate, and how long its predictions take."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

from blis_jax.lazy import pandas as pd
from surrogate.data import Data
from surrogate.fitting.learn import samples_of
from surrogate.fitting.network import features
from surrogate.predictor import Surrogate
from surrogate.scores import r_squared

MOST_GP_POINTS = 600  # its cost grows with the cube of the points
OURS = "deep ensemble"
Maker = Callable[[], Any]


def _gaussian_process() -> Any:
    def made(num_features: int) -> Any:
        """Make a process with a length for every feature and noise, as scikit-optimize's own searches have."""
        lengths = np.full(num_features, 2.0)
        kernel = ConstantKernel(1.0, (1e-2, 1e3)) * Matern(lengths, (1e-2, 1e3), nu=2.5)
        kernel = kernel + WhiteKernel(1e-2, (1e-6, 1.0))
        return GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=0)

    return made


def _boosting() -> Any:
    return HistGradientBoostingRegressor(
        max_iter=600, learning_rate=0.05, early_stopping=False, random_state=0
    )


def _neighbours() -> Any:
    return KNeighborsRegressor(10, weights="distance")


def compare(surrogate: Surrogate, data: Data, chosen: Sequence[str]) -> pd.DataFrame:
    """Return R² on the test points and seconds of fitting, by model and output."""
    num_points = int(surrogate.about["num_points"])
    samples, scales = samples_of(data, num_points)
    learned = [
        name for name, is_learned in zip(data.outputs, scales.is_learned, strict=True) if is_learned
    ]
    x, z = np.asarray(samples.features, float), np.asarray(samples.means, float)
    x_test = np.asarray(features(data.columns, jnp.asarray(data.test.inputs, jnp.float32)), float)
    few = slice(0, MOST_GP_POINTS)
    makers: list[tuple[str, Maker, slice]] = [
        (f"Gaussian process, {min(num_points, MOST_GP_POINTS)} points",
         lambda: _gaussian_process()(x.shape[1]), few),
        ("gradient boosting", _boosting, slice(None)),
        ("10 nearest neighbours", _neighbours, slice(None)),
    ]  # fmt: skip
    rows = []
    ours = surrogate.predict_mean(data.test.inputs)
    with threadpool_limits(1):
        for name in chosen:
            place, y = learned.index(name), data.test.means[:, data.outputs.index(name)]
            rows.append(_row(OURS, name, y, ours[name], num_points, float("nan")))
            for title, make, part in makers:
                started = time.process_time()
                model = make().fit(x[part], z[part, place])
                seconds = time.process_time() - started
                guess = np.zeros((len(y), len(learned)), np.float32)
                guess[:, place] = model.predict(x_test)
                count = min(num_points, MOST_GP_POINTS) if part == few else num_points
                rows.append(_row(title, name, y, surrogate.raw(guess)[:, place], count, seconds))
    return pd.DataFrame(rows)


def _row(
    model: str, output: str, y: np.ndarray, guess: np.ndarray, points: int, seconds: float
) -> dict[str, Any]:
    return {
        "model": model,
        "output": output,
        "points": points,
        "r2": r_squared(y, guess),
        "rmse": float(np.sqrt(np.square(y - guess).mean())),
        "fit_cpu_s": seconds,
    }


# --- speed ----------------------------------------------------------------------------------------

NUM_POINTS, REPEATS = 65_536, 5


def measure(surrogate: Surrogate, metric: str) -> pd.DataFrame:
    """Time each call; return the best of several repetitions, compiled before, in points per second."""
    low, high = np.array(surrogate.bounds).T
    points = np.random.default_rng(0).uniform(low, high, (NUM_POINTS, len(low)))
    calls: dict[str, Callable[[], Any]] = {
        "predict_mean": lambda: surrogate.predict_mean(points),
        "predict": lambda: surrogate.predict(points),
        "gradient of one output": lambda: surrogate.gradient(points, metric),
    }
    rows = []
    for name, call in calls.items():
        call()
        wall, cpu = [], []
        for _ in range(REPEATS):
            started, used = time.perf_counter(), time.process_time()
            call()
            wall.append(time.perf_counter() - started)
            cpu.append(time.process_time() - used)
        rows.append(
            {
                "call": name,
                "points_per_s": NUM_POINTS / min(wall),
                "points_per_cpu_s": NUM_POINTS / min(cpu),
                "cores": len(os.sched_getaffinity(0)),
                "load": os.getloadavg()[0],
            }
        )
    return pd.DataFrame(rows)
