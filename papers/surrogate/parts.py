"""One space of the paper: its datasets, its surrogate and its tables, each made from those before it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

from blis_jax.commands import cli
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_csv
from blis_jax.lazy import pandas as pd
from papers.surrogate.tables import OF_SEEDS, PaperSpace
from surrogate import report_figures as figure
from surrogate.coverage import MOST_WANTED
from surrogate.data import Data, load_data
from surrogate.fitting.learn import samples_of
from surrogate.fitting.network import features
from surrogate.levels.fit import any_seeds_table, common_seeds_table, load_own, unexplained_table
from surrogate.predictor import Surrogate
from surrogate.report_tables import SHOWN
from surrogate.scores import (
    coverage_table,
    evaluate,
    learning_curve,
    r_squared,
    read_pair,
    regions_table,
    sizes_of,
    verdict,
)

# --- other regressors on the data of a surrogate, and how long its predictions take ---------------


MOST_GP_POINTS = 600  # its cost grows with the cube of the points
OURS = "deep ensemble"
Maker = Callable[[], Any]


def _gaussian_process(num_features: int) -> Any:
    """Make a process with a length for every feature and noise, as scikit-optimize's own searches have."""
    lengths = np.full(num_features, 2.0)
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * Matern(lengths, (1e-2, 1e3), nu=2.5)
    kernel = kernel + WhiteKernel(1e-2, (1e-6, 1.0))
    return GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=0)


def compare(surrogate: Surrogate, data: Data, chosen: Sequence[str]) -> pd.DataFrame:
    """Return R² on the test points and seconds of fitting, by model and output."""
    num_points = int(surrogate.about["num_points"])
    samples, scales = samples_of(data, num_points)
    learned = list(compress(data.outputs, scales.is_learned))
    x, z = np.asarray(samples.features, float), np.asarray(samples.means, float)
    x_test = np.asarray(features(data.columns, jnp.asarray(data.test.inputs, jnp.float32)), float)
    few = slice(0, MOST_GP_POINTS)
    boosted = {"max_iter": 600, "learning_rate": 0.05, "early_stopping": False, "random_state": 0}
    makers: list[tuple[str, Maker, slice]] = [
        (f"Gaussian process, {min(num_points, MOST_GP_POINTS)} points",
         lambda: _gaussian_process(x.shape[1]), few),
        ("gradient boosting", lambda: HistGradientBoostingRegressor(**boosted), slice(None)),
        ("10 nearest neighbours", lambda: KNeighborsRegressor(10, weights="distance"), slice(None)),
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


# --- the parts of a space -------------------------------------------------------------------------


FIGURES = ("parity", "residuals")
CURVE_STEPS = 1500


@dataclass(frozen=True)
class Job:
    """One space: its files in `output`, and how each is made from those before."""

    name: str
    space: PaperSpace
    output: Path
    scale: float
    scheduler: str | None = None  # who makes the runs of the datasets

    @property
    def data(self) -> Path:
        """Return the path of the dataset."""
        return self.output / f"{self.name}.zarr"

    @property
    def own(self) -> Path:
        """Return the path of the dataset of points on seeds of their own."""
        return self.output / f"{self.name}_seeds.zarr"

    @property
    def common(self) -> Path:
        """Return the path of the dataset of points that share sets of further seeds."""
        return self.output / f"{self.name}_common.zarr"

    @property
    def model(self) -> Path:
        """Return the folder of the surrogate."""
        return self.output / f"{self.name}.surrogate"

    def make(self, part: str) -> None:
        """Make a part that is missing, after the parts that it needs."""
        self.output.mkdir(parents=True, exist_ok=True)
        if part == "data":
            words = self.space.dataset_arguments(str(self.data), self.scale)
            self._command("data", "sweeps.dataset", [*words, "--resume"])
            if self.space.own:
                words = self.space.own_arguments(str(self.own), self.scale)
                self._command("own seeds", "sweeps.dataset", [*words, "--resume"])
            if self.space.common[0]:
                words = self.space.common_arguments(str(self.common), self.scale)
                self._command("common seeds", "sweeps.dataset", [*words, "--resume"])
        elif part == "fit":
            if not self.model.exists():
                self.make("data")
                words = self.space.train_arguments(str(self.data), str(self.model), self.scale)
                words += ["--seeds-data", str(self.own)] if self.space.own else []
                self._command("fit", "surrogate.train", [*words, "--resume"])
        elif not self._is_made(part) and (part not in OF_SEEDS or self.space.own):
            self.make("fit")
            table = _MAKERS[part](self, *read_pair(self.model, self.data))
            if table is not None:
                write_csv(self._table(part), table, 6)

    def picture(self, name: str) -> Path:
        """Return the path of a figure."""
        return self.output / f"{self.name}_{name}.png"

    def _is_made(self, part: str) -> bool:
        if part == "figures":
            return all(self.picture(name).exists() for name in FIGURES)
        return self._table(part).exists()

    def _table(self, part: str) -> Path:
        return self.output / f"{self.name}_{part}.csv"

    def _command(self, part: str, module: str, words: Sequence[str]) -> None:
        """Run a command in a process of its own, since the engine and the network want other XLA flags."""
        started = time.monotonic()
        if self.scheduler is not None and module == "sweeps.dataset":
            words = [*words, "--scheduler", self.scheduler]
        done = subprocess.run([sys.executable, "-m", module, *words], check=False)
        if done.returncode:
            raise ConfigError(f"{module} ended with code {done.returncode}; see above")
        seconds = time.monotonic() - started
        cli.say("papers.surrogate", f"{self.name}, {part}: {seconds:.0f} s")


# --- the tables -----------------------------------------------------------------------------------


def _bars(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    rows = [
        dataclasses.asdict(score)
        | {
            "runs": data.num_runs,
            "train_points": int(surrogate.about["num_points"]),
            "bar": verdict(score, MOST_WANTED),
        }
        for score in evaluate(surrogate, data)
    ]
    return pd.DataFrame(rows)


def _common_seeds(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    """Return the sets of seeds beside the pool, then the sets of the further points."""
    further = load_data(job.common)
    assert data.seeds is not None and further.seeds is not None
    beside = np.setdiff1d(data.seeds.seeds, data.pool)
    frames = [
        common_seeds_table(surrogate, data.other, beside, data.seeds, 0.9),
        common_seeds_table(surrogate, further.test, further.pool, further.seeds, 0.9),
    ]
    return pd.concat(frames, ignore_index=True)


def _figures(job: Job, surrogate: Any, data: Any) -> None:
    r2 = {score.output: score.r2 for score in evaluate(surrogate, data)}
    predictions, shown = surrogate.predict(data.test.inputs), _shown(surrogate)
    figure.draw_parity(job.picture("parity"), data, predictions, shown, r2)
    figure.draw_residuals(job.picture("residuals"), data, predictions, shown[0])


def _curve(job: Job, surrogate: Any, data: Any) -> pd.DataFrame:
    steps = max(round(CURVE_STEPS * job.scale), 50)
    settings = dataclasses.replace(surrogate.settings, steps=steps)
    sizes = sizes_of(int(surrogate.about["num_points"]))[::-2][::-1]
    path = job.output / f"{job.name}_curve_parts.csv"
    table = learning_curve(data, settings, sizes, path)
    return table[table["output"].isin(_shown(surrogate))].drop(columns="identity")


_MAKERS: Mapping[str, Callable[[Job, Any, Any], Any]] = {
    "bars": _bars,
    "coverage": lambda job, surrogate, data: coverage_table(surrogate, data, 0.9),
    "regions": lambda job, surrogate, data: regions_table(surrogate, data, 0.9),
    "any_seeds": lambda job, surrogate, data: any_seeds_table(
        surrogate, load_own(job.own, data), 0.9
    ),
    "common_seeds": _common_seeds,
    "levels": lambda job, surrogate, data: unexplained_table(surrogate, load_own(job.own, data)),
    "figures": _figures,
    "rivals": lambda job, surrogate, data: compare(surrogate, data, _shown(surrogate)),
    "curve": _curve,
    "speed": lambda job, surrogate, data: measure(surrogate, _shown(surrogate)[0]),
}


def _shown(surrogate: Any) -> list[str]:
    learned = set(compress(surrogate.outputs, surrogate.scales.is_learned))
    return [name for name in SHOWN if name in learned] or sorted(learned)[:1]
