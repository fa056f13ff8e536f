"""Where requests come from under `--profile blis-2026-08`; no engine is asked."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.commands.cli import Notes
from blis_jax.commands.run import requests as sessions
from blis_jax.commands.run.flags import RunOptions, make_parser
from blis_jax.commands.run.requests import requests_of
from blis_jax.commands.run.workload import closed_loop_of, source_of, warn_of_idle_options
from blis_jax.errors import ConfigError, UnsupportedError
from blis_jax.records.record import Status
from blis_jax.results.blis_files import labels_of
from blis_jax.runs.closed_loop import ClosedLoopRun
from blis_jax.traces.read import read_trace
from blis_jax.workload.reference import draw_closed_loop
from blis_jax.workload.table import WorkloadNames
from tests.support.recorded.revised_data import FOLDER, recorded
from tests.support.tiny_records import run_of

REVISED = {"variant": "blis-2026-08"}
DISTRIBUTION = {"rate": 40.0, "num_requests": 200, "seed": 42}


def table_of(**given):
    return requests_of(source_of(RunOptions.of(REVISED | given)), ClusterConfig())


@pytest.mark.parametrize(
    ("given", "workload"),
    [
        (DISTRIBUTION, "w_07eec6267c11"),
        ({"workload": "chatbot", "rate": 10.0, "num_requests": 80, "seed": 42}, "w_256a7b40a5cf"),
        ({"workload_spec": str(FOLDER / "specs" / "ip_single.yaml"), "seed": 42}, "w_1509803d6275"),
        ({"workload_spec": str(FOLDER / "specs" / "mixed3_seed7.yaml")}, "w_d1e9c4bc1f08"),
    ],
)
def test_the_profile_draws_its_own_requests(given, workload):
    table, names = table_of(**given)
    theirs = recorded(workload)
    for name in ("arrival_us", "input_len", "output_len"):
        assert np.array_equal(getattr(table, name), theirs[name]), name
    has_deadlines = theirs["deadline_us"].any()
    assert (names.deadline_us is not None) == has_deadlines
    if has_deadlines:
        assert np.array_equal(names.deadline_us, theirs["deadline_us"])


def test_the_first_revision_goes_on_drawing_its_own():
    table, names = requests_of(source_of(RunOptions.of(DISTRIBUTION)), ClusterConfig())
    assert table.arrival_us[0] == 0 and names.deadline_us is None


def test_policies_never_draw_from_the_seed_of_a_file():
    given = {"workload_spec": str(FOLDER / "specs" / "mixed3_seed7.yaml")}
    assert source_of(RunOptions.of(given)).policy_seed == source_of(RunOptions.of(given)).seed == 7
    revised = source_of(RunOptions.of(REVISED | given))
    assert (revised.policy_seed, revised.seed) == (42, 7)
    assert source_of(RunOptions.of(REVISED | given | {"seed": 3})).policy_seed == 3


def test_the_option_timeout_gives_every_request_a_deadline():
    spec = str(FOLDER / "specs" / "timeouts.yaml")
    for seconds, timeout_us in ((2.5, 2_500_000), (None, 1_500_000), (-1, 0)):
        given = {"workload_spec": spec} | ({} if seconds is None else {"timeout": seconds})
        table, names = table_of(**given)
        if not timeout_us:
            assert names.deadline_us is None
        else:
            assert set((names.deadline_us - table.arrival_us).tolist()) == {timeout_us}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": 4, "rate": 3.0}, "--concurrency and --rate are both given"),
        ({"concurrency": -4}, "--concurrency must be at least 0, got -4"),
        ({"concurrency": 4, "think_time_ms": -1}, "--think-time-ms must be at least 0, got -1"),
        ({"rate": 3.0, "timeout": 0.0}, "--timeout must be above 0 s, or negative for no deadline"),
        (
            {"workload_spec": "mixed", "concurrency": 4},
            r"put clients\[\]\.concurrency into the file",
        ),
        ({"concurrency": 4}, "num_requests: neither a number of requests nor a horizon"),
    ],
)
def test_options_that_contradict_each_other(given, words):
    with pytest.raises(ConfigError, match=words):
        table_of(**given)


@pytest.mark.parametrize("name", ["concurrency", "think_time_ms", "timeout"])
def test_options_of_the_later_revision_need_its_profile(name):
    option = name.replace("_", "-")
    with pytest.raises(
        ConfigError, match=f"--{option} is an option of BLIS's revision blis-2026-08"
    ):
        source_of(RunOptions.of({"rate": 3.0, name: 5}))
    with pytest.raises(ConfigError, match=f"--{option} is an option"):
        source_of(RunOptions.of({"workload_spec": "mixed", name: 5}))
    assert name in make_parser().given([f"--{option}", "5"])


@pytest.mark.parametrize(
    ("given", "num_given"),
    [
        ({"concurrency": 4, "num_requests": 9}, 4),
        ({"workload_spec": str(FOLDER / "specs" / "ip_mt_single.yaml"), "seed": 42}, 12),
    ],
)
def test_closed_loops_are_told_from_requests_that_arrive_by_themselves(given, num_given):
    workload = closed_loop_of(source_of(RunOptions.of(REVISED | given)))
    assert len(workload.requests) == len(workload.sessions) == num_given
    assert closed_loop_of(source_of(RunOptions.of(REVISED | DISTRIBUTION))) is None
    assert closed_loop_of(source_of(RunOptions.of(DISTRIBUTION))) is None


def test_results_name_the_requests_of_sessions_as_blis_does():
    loop = draw_closed_loop(
        source_of(RunOptions.of(REVISED | {"concurrency": 2, "num_requests": 4})).spec, 42
    )
    rows, created = np.array([0, 1, 2]), np.array([0, 0, 1])
    columns = {"arrival_us": [0, 5, 900], "client": [0] * 3, "tenant": [0] * 3}
    columns |= {"session": [0, 1, 0], "round_index": [0, 0, 1]}
    arrays = {name: np.array(values) for name, values in columns.items()}
    table = dataclasses.replace(loop.table, **arrays)
    record = SimpleNamespace(requests=SimpleNamespace(status=np.zeros(3)))
    run = ClosedLoopRun(record, loop, rows, table, created, 1)
    labels = labels_of(record, table, sessions.names_of_run(run), request_ids=run.request_ids())
    assert labels.request_id == [
        "request_0",
        "request_1",
        "session_concurrency_distribution_user_0_round_1_1",
    ]
    assert labels.session[2] == "concurrency_distribution_user_0"
    assert labels.round_index[2] == 1
    assert sessions.names_of_run(run).deadline_us.tolist() == [
        300_000_000,
        300_000_005,
        300_000_900,
    ]


def test_sessions_with_arrivals_of_their_own_are_drawn():
    table, _ = table_of(workload_spec=str(FOLDER / "specs" / "multi_turn_open.yaml"), seed=42)
    assert np.array_equal(table.arrival_us, recorded("w_983c6d6ac0a6")["arrival_us"])


def record_of(status, left_us):
    requests = SimpleNamespace(status=np.array(status), left_us=np.array(left_us))
    return SimpleNamespace(requests=requests)


def test_a_late_request_is_found():
    names = WorkloadNames(deadline_us=np.array([50, 0, 60]))
    done, running = Status.COMPLETED, Status.RUNNING
    for record, given in (
        (record_of([done, done, done], [50, 99, 60]), names),
        (record_of([done, done, done], [90, 99, 60]), WorkloadNames()),
        (record_of([done, done, Status.REJECTED], [40, 99, -1]), names),
    ):
        assert sessions.late_request(record, given, 59) is None
    for record in (
        record_of([done] * 3, [40, 99, 61]),
        record_of([done, done, running], [9, 99, -1]),
        record_of([done, done, Status.EVICTED], [9, 99, -1]),
    ):
        assert sessions.late_request(record, names, 60) == 2
    unfinished = record_of([done, done, running], [9, 10, -1])  # BLIS gives it up at the horizon
    assert sessions.late_request(unfinished, names, 60) == 2
    assert sessions.late_request(unfinished, names, 59) is None


def test_requests_are_given_up_where_that_means_something():
    names = WorkloadNames(deadline_us=np.array([50, 0, 60]))
    for config in (ClusterConfig(revision=AUGUST), ClusterConfig(corrected=True)):
        sessions.check_gives_up(config, names, 2)
    with pytest.raises(UnsupportedError, match="request 2 is not done by its deadline at 60 us"):
        sessions.check_gives_up(ClusterConfig(), names, 2)


def test_a_run_is_written_in_the_form_of_its_revision(tmp_path):
    given = REVISED | DISTRIBUTION | {"trace_output": str(tmp_path / "run.csv")}
    source, count = source_of(RunOptions.of(given)), DISTRIBUTION["num_requests"]
    record = run_of({"arrival_us": recorded("w_07eec6267c11")["arrival_us"]})
    requests = table_of(**DISTRIBUTION)
    sessions.write_trace(RunOptions.of(given), ClusterConfig(), record, source, {}, requests)
    trace = read_trace(tmp_path / "run.csv")
    assert trace.format == "trace-v3" and len(trace.rows) == count
    assert "workload_seed: 42" in (tmp_path / "run.yaml").read_text()
    sessions.write_trace(RunOptions.of(REVISED), ClusterConfig(), record, source, {}, requests)


def test_nothing_idle_is_said_of_simple_workloads(capsys):
    given = REVISED | DISTRIBUTION
    warn_of_idle_options(
        RunOptions.of(given), ClusterConfig(), source_of(RunOptions.of(given)), Notes("x", "warn")
    )
    assert capsys.readouterr().err == ""
