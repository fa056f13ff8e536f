"""How many points a second a surrogate predicts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from surrogate.predictor import Surrogate

if TYPE_CHECKING:
    import pandas as pd

NUM_POINTS, REPEATS = 65_536, 5


def measure(surrogate: Surrogate, metric: str) -> pd.DataFrame:
    """The best of several repetitions of each call, compiled before."""
    import pandas as pd

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
