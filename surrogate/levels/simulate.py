"""The baseline simulated on given seeds: what no prediction knows of a level is then measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from surrogate.data import FAILED
from surrogate.levels.model import SIMULATED
from surrogate.levels.predict import drawing, levels_of, workload_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.metrics.measure import Measure
    from blis_jax.metrics.on_device.run_figures import Figures
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable
    from surrogate.levels.model import Levels
    from surrogate.predictor import Surrogate

OTHERWISE = "predict from the requests of the seeds alone (--level requests)"


def baseline_config(surrogate: Surrogate) -> ClusterConfig:
    """The baseline's cluster.

    Raises:
        ConfigError: the surrogate does not know it, or a policy of it is not registered here.
    """
    from blis_jax.cluster.setting_values import config_of_values

    levels = levels_of(surrogate)
    if SIMULATED not in levels.modes or not levels.settings:
        raise ConfigError(
            f"this surrogate does not know the settings of its baseline; train it again, or {OTHERWISE}"
        )
    try:
        return config_of_values(levels.settings)
    except ConfigError as error:
        raise ConfigError(
            f"baseline {levels.baseline} cannot be simulated here ({error}); {OTHERWISE}"
        ) from None


def baseline_on_seeds(
    surrogate: Surrogate, seeds: Sequence[int], spec: WorkloadSpec | None = None
) -> np.ndarray:
    """Simulates the baseline on seeds, one run each, as the dataset's were made.

    Args:
        surrogate: one that was trained with `--seeds-data`.
        seeds: whole numbers that its stream of requests has.
        spec: the workload, the dataset's if None.

    Returns:
        What the surrogate predicts, of every run, `[seed, output]` in the outputs' units.

    Raises:
        ConfigError: the baseline cannot be simulated here, a run does not come to its end, or one has no figure
            for an output.
    """
    from blis_jax.commands.sweep.data import slo_targets
    from blis_jax.metrics.on_device import further  # noqa: F401  (registers metrics that datasets have)
    from blis_jax.metrics.on_device.run_figures import figures_of
    from blis_jax.runs.many_runs import run_given
    from blis_jax.runs.options import Options, default_form
    from blis_jax.workload.source import until_horizon

    levels = levels_of(surrogate)
    spec = workload_of(levels, spec)
    config = until_horizon(baseline_config(surrogate), spec)
    measure, draw = _measure(levels, spec), drawing(levels)

    def table_of(seed: int, block_size: int) -> RequestTable:
        """The requests of one run."""
        return draw(spec, seed, block_size)[0]

    names = [name for name in surrogate.outputs if name != FAILED]
    summarize = figures_of(names, slo_targets(measure), measure)
    options = Options(form=default_form())
    (runs,) = run_given([config], table_of, seeds, summarize, options).rows
    each = zip(seeds, runs, strict=True)
    return np.array([_outputs(surrogate, seed, run) for seed, run in each])


def _measure(levels: Levels, spec: WorkloadSpec) -> Measure:
    """As the dataset's runs were measured."""
    from blis_jax.metrics.measure import DEFAULT_TARGETS, Measure

    targets = {
        name: {limit: ms for limit, ms in limits.items() if ms is not None}
        for name, limits in (levels.targets or DEFAULT_TARGETS).items()
    }
    measure = Measure(targets, spec.measure.warm_up_s, spec.measure.cool_down_s)
    measure.check(spec)
    return measure


def _outputs(surrogate: Surrogate, seed: int, run: Figures) -> list[float]:
    """What the surrogate predicts, of one run."""
    where = f"seed {seed}: baseline {levels_of(surrogate).baseline}"
    if not run.metrics:
        raise ConfigError(
            f"{where} does not come to its end ({run.outcome.name}); leave out this seed, or {OTHERWISE}"
        )
    found = [float(run.metrics.get(name, 0.0)) for name in surrogate.outputs]  # 0: it did not fail
    for name, value in zip(surrogate.outputs, found, strict=True):
        if math.isnan(value):
            raise ConfigError(f"{where} has no {name}; leave out this seed, or {OTHERWISE}")
    return found
