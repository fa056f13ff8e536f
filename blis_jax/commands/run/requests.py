"""Requests for one run, drawn by the JAX generator or read from a file, and the run itself."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from blis_jax.cluster.offload_tiers import block_bytes, has_tiers, header_of
from blis_jax.commands import cli
from blis_jax.commands.run.flags import LATEST_US, RunOptions, router_watched
from blis_jax.commands.run.workload import is_revised
from blis_jax.core.arrays import stacked
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.records.observation import unstack
from blis_jax.records.record import Status
from blis_jax.runs.closed_loop import placed, simulate_closed_loop
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled, drawn_of
from blis_jax.traces import write
from blis_jax.traces.closed_loop import closed_loop_of_rows as closed_loop_of_rows
from blis_jax.workload.distribution import NO_REQUEST
from blis_jax.workload.drawing.draw import compile_plan
from blis_jax.workload.reference.arrays import table_of
from blis_jax.workload.reference.distribution import draw_distribution
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.table import NEVER_US, load_table, with_timeouts

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.cli import Notes
    from blis_jax.commands.run.workload import Source
    from blis_jax.policies.contract import Policies
    from blis_jax.records.record import RunRecord
    from blis_jax.results.scores import Limits
    from blis_jax.runs.closed_loop import ClosedLoopRun
    from blis_jax.traces.read import Trace
    from blis_jax.workload.reference.generate import DrawnWorkload
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable, WorkloadNames


def draw_requests(
    spec: WorkloadSpec, seed: int, block_size: int
) -> tuple[RequestTable, WorkloadNames]:
    """Draw a seed's requests on the device, equal to those that `over_seeds` simulates.

    If the draws for a client are too few, more are drawn with the same key.

    Args:
        spec: the workload.
        seed: a whole number from 0 to 2^63 − 1.
        block_size: tokens of a KV block; shared prompt prefixes are counted in whole blocks.

    Returns:
        The requests by arrival, numpy arrays `[request]`, and the texts behind their codes.

    Raises:
        ConfigError: the workload sends no request, or one client has too many.
    """
    for headroom in (1.0, 2.0, 4.0, 8.0, 16.0):
        plan = compile_plan(spec, block_size=block_size, headroom=headroom)
        with jax.enable_x64(True):
            rows = jax.tree.map(stacked, (plan.params, np.int64(seed)))
            (tables, _), drawn = jax.device_get(compiled(drawn_of, plan.shape)(*rows))
        if not drawn.is_short[0]:
            table = _without_padding(unstack(tables, 0))
            if not table.num_rows and not spec.horizon:
                raise ConfigError(NO_REQUEST)
            return table, plan.names
    raise ConfigError(f"--workload-spec: {Outcome.WORKLOAD_SHORT.sentence}; draw fewer requests")


def _without_padding(table: RequestTable) -> RequestTable:
    """Return the table without the padding after the rows that arrive."""
    num_rows = int(np.count_nonzero(table.arrival_us != NEVER_US))
    columns = {
        field.name: getattr(table, field.name)[:num_rows]
        for field in dataclasses.fields(table)
        if not field.name.startswith("node_")
    }
    return dataclasses.replace(table, **columns)


def requests_of(source: Source, config: ClusterConfig) -> tuple[RequestTable, WorkloadNames]:
    """Draw or read the requests."""
    block_size = config.block_size_in_tokens
    if source.path is not None:
        return load_requests(source.path, block_size)
    assert source.seed is not None
    if source.distribution is not None:
        return draw_distribution(source.distribution, source.seed, config.horizon, block_size)
    assert source.spec is not None
    if source.stream == "jax":
        return draw_requests(source.spec, source.seed, block_size)
    return _drawn_table(source, block_size)


def _drawn_table(source: Source, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """Return the requests drawn from BLIS's own random streams."""
    assert source.spec is not None
    return table_of(drawn(source.spec, source.seed, source.timeout_us), block_size)


def load_requests(path: Path, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """Read a recorded workload, and check the ranges of values that the engine relies on."""
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
    config: ClusterConfig, table: RequestTable, options: RunOptions, seed: int
) -> RunRecord:
    """Make one run with the command's options; random policies draw from the seed."""
    return simulate(config, table, _how(options), seed, router_watched(options, config))


def _how(options: RunOptions) -> Options:
    form = "rows" if jax.default_backend() == "cpu" else "lanes"
    return Options(num_slots=options.slots, clock=options.clock, form=form)


# --- runs of workloads of August 2026: closed-loop sessions ---------------------------------------


_OPEN_ENDED = (Status.WAITING, Status.RUNNING, Status.IN_FLIGHT, Status.EVICTED, Status.DROPPED)


def names_of_run(run: ClosedLoopRun) -> WorkloadNames:
    """Return the names for the codes in the run's table, and the deadlines of the requests that arrived."""
    deadline_us = np.array([request.deadline_us for request in run.arrived()], np.int64)
    models = run.loop.names.models
    models = None if models is None else models[run.rows]
    adapters = run.loop.names.adapters
    adapters = None if adapters is None else adapters[run.rows]
    return dataclasses.replace(
        run.loop.names, deadline_us=deadline_us, models=models, adapters=adapters
    )


def placed_table(
    table: RequestTable, names: WorkloadNames, config: ClusterConfig, notes: Notes
) -> RequestTable:
    """Add the requests' own TTFT targets, and mark requests whose model no instance serves, with a warning."""
    placed_requests = placed(config, table, names)
    if hasattr(placed_requests, "is_elsewhere"):
        others = sorted({name for name in names.models.tolist() if not config.serves(name)})  # type: ignore[union-attr]
        notes.warn(
            f"requests for {', '.join(others)} are rejected at routing, as in BLIS: all instances have "
            f"--model {config.model}"
        )
    return placed_requests


def late_request(record: RunRecord, names: WorkloadNames, horizon: int) -> int | None:
    """Return the first request that misses its deadline; None if none does, so that deadlines have no effect.

    A request that left its instance early has no recorded end, and counts as unfinished at the horizon.
    """
    if names.deadline_us is None:
        return None
    requests = record.requests
    is_open = np.isin(requests.status, _OPEN_ENDED)
    has_passed = np.where(
        is_open, names.deadline_us <= horizon, names.deadline_us < requests.left_us
    )
    is_late = (names.deadline_us > 0) & has_passed
    return int(np.argmax(is_late)) if is_late.any() else None


def run_of_table(
    config: ClusterConfig,
    table: RequestTable,
    names: WorkloadNames,
    options: RunOptions,
    seed: int,
    said: Notes | None = None,
) -> RunRecord:
    """Run given requests; if one of them misses its deadline, run them again with deadlines.

    In a profile without deadlines, a missed deadline is refused, or, with notes, warned of.
    """
    record = simulated(config, table, options, seed)
    late = late_request(record, names, config.horizon)
    if late is None:
        return record
    if said is not None and not gives_up(config):
        said.warn(
            f"the deadlines of {options.trace} have no effect: BLIS of February gives no request up; take --profile "
            "blis-2026-08 or --corrected"
        )
        return record
    check_gives_up(config, names, late)
    return simulated(config, with_deadlines(table, names), options, seed)


def run_as_asked(
    config: ClusterConfig, workload: DrawnWorkload, options: RunOptions, seed: int
) -> ClosedLoopRun:
    """Run users who wait for their answers, with the command's options."""
    return run_of_users(config, workload, _how(options), seed, router_watched(options, config))


def run_of_users(
    config: ClusterConfig,
    workload: DrawnWorkload,
    how: Options,
    seed: int,
    policies: Policies | None = None,
) -> ClosedLoopRun:
    """Run users who wait for their answers; if a request misses its deadline, run them again with deadlines."""
    run = simulate_closed_loop(config, workload, how, seed, policies)
    late = late_request(run.record, names_of_run(run), config.horizon)
    if late is None:
        return run
    check_gives_up(config, names_of_run(run), late)
    return simulate_closed_loop(config, workload, how, seed, policies, gives_up=True)


def gives_up(config: ClusterConfig) -> bool:
    """Return whether requests are given up at their deadlines in this profile."""
    return config.is_august or config.corrected


def check_gives_up(config: ClusterConfig, names: WorkloadNames, late: int) -> None:
    """Refuse a missed deadline in profiles in which BLIS gives no request up."""
    if gives_up(config) or names.deadline_us is None:
        return
    raise UnsupportedError(
        f"request {late} is not done by its deadline at {names.deadline_us[late]} us, and BLIS of February "
        "gives no request up; take the profile blis-2026-08 or the corrected one, or no deadlines: --timeout -1, or "
        "timeout: 0 of the workload's clients"
    )


def with_deadlines(table: RequestTable, names: WorkloadNames) -> RequestTable:
    """Add the requests' deadlines to the table, as timeouts from their arrival in µs."""
    assert names.deadline_us is not None
    timeout = np.where(names.deadline_us > 0, names.deadline_us - np.asarray(table.arrival_us), 0)
    return with_timeouts(table, timeout)


def write_trace(
    options: RunOptions,
    config: ClusterConfig,
    record: RunRecord,
    source: Source,
    limits: Limits,
    requests: tuple[RequestTable, WorkloadNames],
    trace: Trace | None = None,
    run: ClosedLoopRun | None = None,
) -> str:
    """Write the run as a trace, if `--trace-output` asks for it; return a remark on what the file cannot hold.

    Args:
        options: the options of the run.
        config: the cluster.
        record: the record of the run.
        source: the source of the requests.
        limits: the limits of SLO classes, for the trace's header.
        requests: the table of requests, and the names for its codes.
        trace: the trace from which the requests were read, if any.
        run: the closed-loop run, if any; if a trace was replayed, only first rounds are written, as by BLIS.
    """
    if options.trace_output is None:
        return ""
    path, size = Path(options.trace_output), config.block_size_in_tokens
    offload = config.kv_offload_config
    tiers = header_of(offload, size, block_bytes(config)) if has_tiers(config) else None
    with cli.writing(path):
        if is_revised(source):
            assert source.spec is not None
            write.write_drawn(
                path,
                drawn(source.spec, source.seed, source.timeout_us),
                requests=run.arrived() if run else None,
                record=record,
                header=write.revised_header(limits, workload_seed=source.seed, kv_offload=tiers),
            )
            return ""
        if trace is not None and run is not None:
            places = np.flatnonzero(run.num_created == 0)
            places = places[np.argsort(run.rows[places])]
            write.write_first_rounds(path, record, places, trace.rows, limits, tiers)
            return ""
        clients = tuple(client.id for client in source.spec.clients) if source.spec else ()
        rows = write.from_table(*requests, clients) if trace is None else trace.rows
        if record.is_august:
            return write.write_replayed(path, record, rows, limits, tiers)
        return write.write_run(path, record, rows, options.workload_spec or "")
