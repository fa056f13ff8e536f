"""Requests for one run, drawn by the JAX generator or read from a file, and the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands.run.decisions import router_watched
from blis_jax.commands.run.flags import LATEST_US
from blis_jax.errors import ConfigError
from blis_jax.workload.lengths.distribution import NO_REQUEST

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.results.records import RunRecord
    from blis_jax.runs.closed_loop import ClosedLoopRun
    from blis_jax.runs.simulation import Options
    from blis_jax.workload.reference.generate import DrawnWorkload
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable, WorkloadNames


def draw_requests(
    spec: WorkloadSpec, seed: int, block_size: int
) -> tuple[RequestTable, WorkloadNames]:
    """Draw the requests of a seed on the device, the same ones as `over_seeds` simulates.

    A client with too few draws gets more from the same key.

    Args:
        spec: the workload.
        seed: a whole number from 0 to 2^63 − 1.
        block_size: tokens of a KV block, by which shared contents are cut.

    Returns:
        The requests by arrival, numpy arrays `[request]`, and the texts behind their codes.

    Raises:
        ConfigError: the workload sends no request, or one client has too many.
    """
    import jax

    from blis_jax.core.outcome import Outcome
    from blis_jax.runs.programs import compiled, draws_of
    from blis_jax.workload.drawing.draw import compile_plan

    for headroom in (1.0, 2.0, 4.0, 8.0, 16.0):
        plan = compile_plan(spec, block_size=block_size, headroom=headroom)
        with jax.enable_x64(True):
            drawn = compiled(draws_of, plan.shape)(plan.params, np.int64(seed))
            table, is_short = jax.device_get(drawn)
        if not is_short:
            table = _without_padding(table)
            if not table.num_rows and not spec.horizon:
                raise ConfigError(NO_REQUEST)
            return table, plan.names
    raise ConfigError(f"--workload-spec: {Outcome.WORKLOAD_SHORT.sentence}; draw fewer requests")


def _without_padding(table: RequestTable) -> RequestTable:
    """The rows that arrive, which come first."""
    import dataclasses

    import numpy as np

    from blis_jax.workload.table import NEVER_US

    num_rows = int(np.count_nonzero(table.arrival_us != NEVER_US))
    columns = {
        field.name: getattr(table, field.name)[:num_rows]
        for field in dataclasses.fields(table)
        if not field.name.startswith("node_")
    }
    return dataclasses.replace(table, **columns)


def load_requests(path: Path, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """A recorded workload, also checked for what the engine takes for granted."""
    import zipfile

    from blis_jax.workload.table import load_table

    if path.is_file() and not zipfile.is_zipfile(path):
        raise ConfigError(f"{path} is not a whole .npz archive; give a recorded workload")
    try:
        table, names = load_table(path, block_size)
    except ConfigError:
        raise
    except Exception as error:  # an .npz can be damaged in as many ways as zip, zlib and numpy know
        raise ConfigError(
            f"{path} cannot be used as a workload ({type(error).__name__}: {error}); "
            "give a file of the golden workload format"
        ) from None
    _check_table(path, table, names)
    return table, names


def _check_table(path: Path, table: RequestTable, names: WorkloadNames) -> None:
    import numpy as np

    from blis_jax.core.types import SLO_CLASSES

    if not table.num_rows:
        raise ConfigError(f"{path} holds no request; give a workload with at least one")
    limits = {
        "arrival_us": (0, LATEST_US),
        "output_len": (0, 2**31 - 1),
        "slo_class": (0, len(SLO_CLASSES) - 1),
        "tenant": (0, max(len(names.tenant_names) - 1, 0)),
    }
    for name, (low, high) in limits.items():
        values = np.asarray(getattr(table, name))
        is_bad = (values < low) | (values > high)
        if is_bad.any():
            row = int(np.argmax(is_bad))
            raise ConfigError(f"{path}: {name}[{row}] is {values[row]}; allowed is {low} to {high}")


def simulated(
    config: ClusterConfig, table: RequestTable, given: Mapping[str, Any], seed: int
) -> RunRecord:
    """One run with the options that the command was given; random policies draw from the seed."""
    from blis_jax.runs.simulation import simulate

    return simulate(config, table, _options(given), seed, router_watched(given, config))


def followed(
    config: ClusterConfig,
    workload: DrawnWorkload,
    given: Mapping[str, Any],
    seed: int,
    gives_up: bool = False,
) -> ClosedLoopRun:
    """One run of a workload whose completions bring requests, with the options of the command.

    Deadlines count where `gives_up`.
    """
    from blis_jax.runs.closed_loop import simulate_closed_loop

    watched = router_watched(given, config)
    return simulate_closed_loop(config, workload, _options(given), seed, watched, gives_up)


def _options(given: Mapping[str, Any]) -> Options:
    import jax

    from blis_jax.runs.simulation import Options

    form = "rows" if jax.default_backend() == "cpu" else "lanes"
    return Options(num_slots=given.get("slots"), clock=given.get("clock", "int32"), form=form)


def is_whole(record: RunRecord) -> bool:
    """Whether the run ended as the reference would: completed, or at its horizon."""
    from blis_jax.core.outcome import Outcome

    return record.outcome in (Outcome.COMPLETED, Outcome.HORIZON)


def dashed(config: ClusterConfig) -> dict[str, Any]:
    """The configuration under the reference's flag names; what the other revision lacks only where it was given."""
    from blis_jax.cluster import disaggregation
    from blis_jax.cluster.config import FIELDS, ClusterConfig
    from blis_jax.cluster.setting_values import OUR_POLICY_SETTINGS, plain_value

    default = ClusterConfig()
    ours = (*OUR_POLICY_SETTINGS, *_OF_SIZES, "latency_model", "instances", "precise_kv_routing")
    ours += ("node_pools",)
    ours += ("revision", "cache_signal_delay", "max_model_len", *disaggregation.SETTINGS)
    is_idle = {name for name in ours if getattr(config, name) == getattr(default, name)}
    names = [name for name in FIELDS if name not in _OURS and name not in is_idle]
    return {name.replace("_", "-"): plain_value(getattr(config, name)) for name in names}


_OF_SIZES = ("dp", "model_config", "moe_comm_backend", "gpu_memory_utilization")
_OURS = ("variant", "corrected")  # settings that are no flags of the reference
