"""Runs of workloads of August 2026: closed-loop sessions, deadlines, and the trace in that form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.commands.run.requests import followed, simulated
from blis_jax.errors import UnsupportedError
from blis_jax.results.records import Status
from blis_jax.workload.versions import FIRST_REVISION

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.cli import Notes
    from blis_jax.commands.run.workload import Source
    from blis_jax.results.records import RunRecord
    from blis_jax.results.scores.goodput import Limits
    from blis_jax.runs.closed_loop import ClosedLoopRun
    from blis_jax.workload.reference.generate import DrawnWorkload
    from blis_jax.workload.table import RequestTable, WorkloadNames

_OPEN_ENDED = (Status.WAITING, Status.RUNNING, Status.IN_FLIGHT, Status.EVICTED, Status.DROPPED)


def closed_loop_of(source: Source) -> DrawnWorkload | None:
    """The workload, drawn, if completions bring some of its requests."""
    if not is_revised(source) or source.stream == "jax":
        return None
    from blis_jax.workload.reference.generate import drawn

    assert source.spec is not None
    workload = drawn(source.spec, source.seed, source.timeout_us)
    return workload if workload.sessions else None


def is_revised(source: Source) -> bool:
    """Whether the requests are drawn by the rules of August 2026."""
    return source.spec is not None and source.spec.revision != FIRST_REVISION


def names_of_run(run: ClosedLoopRun) -> WorkloadNames:
    """The texts behind the table's codes, and the deadlines of the requests that arrived."""
    import dataclasses

    import numpy as np

    deadline_us = np.array([request.deadline_us for request in run.arrived()], np.int64)
    models = run.loop.names.models
    models = None if models is None else models[run.rows]
    return dataclasses.replace(run.loop.names, deadline_us=deadline_us, models=models)


def placed_table(
    table: RequestTable, names: WorkloadNames, config: ClusterConfig, notes: Notes
) -> RequestTable:
    """The requests with bounds of their own, and those marked that no instance has a model for, which is said."""
    from blis_jax.workload.table import with_models as marked
    from blis_jax.workload.table import with_targets

    if config.goes_by_targets:
        table = with_targets(table, names.slo_target_us)
    placed = marked(table, names.models, config.serves)
    if placed is not table:
        others = sorted({name for name in names.models.tolist() if not config.serves(name)})  # type: ignore[union-attr]
        notes.warn(
            f"requests for {', '.join(others)} are rejected at routing, as in BLIS: all instances have "
            f"--model {config.model}"
        )
    return placed


def late_request(record: RunRecord, names: WorkloadNames, horizon: int) -> int | None:
    """The first request that is not done by its deadline, None if all are: then deadlines change nothing.

    One whose end no record tells, as it left its instance early, counts as one that is there at the horizon.
    """
    import numpy as np

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
    given: Mapping[str, Any],
    seed: int,
    said: Notes | None = None,
) -> RunRecord:
    """The run of given requests; again with deadlines if one of them comes too late.

    In a profile without deadlines that is refused, or said where there are notes.
    """
    record = simulated(config, table, given, seed)
    late = late_request(record, names, config.horizon)
    if late is None:
        return record
    if said is not None and not gives_up(config):
        said.warn(
            f"the deadlines of {given['trace']} have no effect: BLIS of February gives no request up; take --profile "
            "blis-2026-08 or --corrected"
        )
        return record
    check_gives_up(config, names, late)
    return simulated(config, with_deadlines(table, names), given, seed)


def run_of_users(
    config: ClusterConfig, workload: DrawnWorkload, given: Mapping[str, Any], seed: int
) -> ClosedLoopRun:
    """The run of users who wait for their answers; likewise."""
    run = followed(config, workload, given, seed)
    late = late_request(run.record, names_of_run(run), config.horizon)
    if late is None:
        return run
    check_gives_up(config, names_of_run(run), late)
    return followed(config, workload, given, seed, gives_up=True)


def gives_up(config: ClusterConfig) -> bool:
    """Whether requests are given up at their deadlines in this profile."""
    return config.is_august or config.corrected


def check_gives_up(config: ClusterConfig, names: WorkloadNames, late: int) -> None:
    """Refuses a run in which requests are given up, in profiles where nobody knows what follows."""
    if gives_up(config) or names.deadline_us is None:
        return
    raise UnsupportedError(
        f"request {late} is not done by its deadline at {names.deadline_us[late]} us, and BLIS of February "
        "gives no request up; take --profile blis-2026-08 or --corrected, or give --timeout -1 for no deadlines"
    )


def with_deadlines(table: RequestTable, names: WorkloadNames) -> RequestTable:
    """The requests with their deadlines."""
    import numpy as np

    from blis_jax.workload.table import with_timeouts

    assert names.deadline_us is not None
    timeout = np.where(names.deadline_us > 0, names.deadline_us - np.asarray(table.arrival_us), 0)
    return with_timeouts(table, timeout)


def write_trace(
    given: Mapping[str, Any],
    record: RunRecord,
    source: Source,
    run: ClosedLoopRun | None = None,
    limits: Limits | None = None,
) -> None:
    """The run as BLIS of August 2026 writes it, if it was asked for."""
    from blis_jax.commands import cli
    from blis_jax.traces.write_revised import revised_header, write_drawn
    from blis_jax.workload.reference.generate import drawn

    if "trace_output" not in given:
        return
    assert source.spec is not None
    path = Path(given["trace_output"])
    header = revised_header(limits or {}, workload_seed=source.seed)
    with cli.writing(path):
        write_drawn(
            path,
            drawn(source.spec, source.seed, source.timeout_us),
            requests=run.arrived() if run else None,
            record=record,
            header=header,
        )
