"""Made-up measured runs: a simulation with known coefficients, with noise if wanted."""

import numpy as np

from blis_jax.calibrate.calibration import Simulator
from blis_jax.cluster.config import ClusterConfig
from blis_jax.traces.measured.run import MeasuredRun
from blis_jax.traces.rows import make_rows

TERMS = ("alpha0", "beta0", "beta1", "beta2")
TRUE = np.array([900.0, 7000.0, 38.0, 90.0])
CLUSTER = ClusterConfig(corrected=True, max_num_running_reqs=12, max_num_scheduled_tokens=512)


def unmeasured(num_requests: int = 40, seed: int = 3) -> MeasuredRun:
    """Requests without latencies."""
    random = np.random.default_rng(seed)
    arrival = np.round(np.cumsum(random.exponential(40_000, num_requests)))
    return MeasuredRun(
        make_rows(
            arrival - arrival[0],
            random.integers(20, 900, num_requests),
            random.integers(2, 120, num_requests),
        ),
        np.zeros(num_requests),
        np.zeros(num_requests),
    )


def measured(noise: float = 0.0, **settings: int) -> MeasuredRun:
    """Latencies of a server with the coefficients TRUE; `noise` is relative."""
    run = unmeasured(**settings)
    found = Simulator(run, CLUSTER, TERMS)(TRUE)
    random = np.random.default_rng(11)
    factor = np.exp(noise * random.standard_normal((2, len(run))))
    ttft = found.ttft_us * factor[0]
    return MeasuredRun(run.rows, ttft, ttft + (found.e2e_us - found.ttft_us) * factor[1])
