"""Workload files with ServeGen data under the rules of August: requests are those of BLIS, seed by seed."""

import json

import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.expansion import expanded
from blis_jax.workload.reference import drawn
from blis_jax.workload.remarks import ineffective_settings
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import parse_spec
from sweeps.runs.requests import workload_for
from sweeps.sweep.plan import make_plan
from tests.workload.servegen.scenes import COHORT, make_data

# arrival in us, input and output tokens, client; of BLIS's traces with seed 11
DAY = [
    (6106, 352, 13, "midnight-batch-0"), (10245, 215, 21, "midnight-standard-0"),
    (395447, 146, 125, "midnight-batch-0"), (515574, 16, 40, "midnight-standard-0"),
    (1178559, 601, 73, "midnight-batch-0"), (1305020, 134, 142, "midnight-standard-0"),
    (1339832, 8, 17, "midnight-sheddable-0"), (1987191, 10, 35, "midnight-critical-0"),
    (1988691, 106, 45, "midnight-critical-0"), (1994883, 44, 20, "midnight-critical-0"),
    (2622108, 48, 52, "midnight-critical-0"), (2686213, 5, 24, "midnight-batch-0"),
]  # fmt: skip
SHORT = {  # by place among the 71 requests of periods of 2 s, 1 s apart
    0: (4546, 15, 13, "midnight-batch-0"),
    9: (3103352, 38, 60, "morning-background-0"),
    68: (7916454, 170, 27, "afternoon-critical-0"),
    70: (7980946, 866, 129, "afternoon-batch-0"),
}
REASONS = [
    (278829, 62, 37, "reasoning-critical-0"), (403832, 469, 98, "reasoning-critical-1"),
    (450422, 797, 44, "reasoning-standard-0"), (539950, 18, 68, "reasoning-standard-1"),
    (550012, 17, 29, "reasoning-critical-1"), (730217, 23, 61, "reasoning-standard-1"),
]  # fmt: skip


def parsed(folder, more="", top="", number=12):
    text = (
        f"version: '2'\nseed: 11\nnum_requests: {number}\n{top}"
        f"servegen_data: {{path: '{folder}'{more}}}\n"
    )
    return parse_spec(text, "w.yaml", REVISED)


def rows_of(spec, seed=None):
    made = drawn(spec, seed)
    return [
        (each.arrival_us, each.input_len, len(each.output), made.clients[each.client].id)
        for each in made.requests
    ]


def test_periods_of_the_day_are_those_of_the_reference(tmp_path):
    assert rows_of(parsed(make_data(tmp_path))) == DAY


def test_periods_last_as_long_as_the_file_says(tmp_path):
    more = ", window_duration_secs: 2, drain_timeout_secs: 1"
    rows = rows_of(parsed(make_data(tmp_path), more, number=90))
    assert len(rows) == 71
    assert {place: rows[place] for place in SHORT} == SHORT


def test_requests_that_reason_are_those_of_the_reference(tmp_path):
    spec = parsed(make_data(tmp_path, reasons=True))
    assert rows_of(spec)[: len(REASONS)] == REASONS
    assert spec.waits  # sessions of one round, with a deadline


def test_the_seed_chooses_windows_and_classes(tmp_path):
    spec = parsed(make_data(tmp_path))
    assert rows_of(spec, 11) == DAY
    assert rows_of(spec, 12) != DAY
    names = [{client.id for client in expanded(spec, seed).clients} for seed in range(6)]
    assert any(each != names[0] for each in names)
    assert not spec.waits and spec.slo_classes[0] == "critical" and len(spec.slo_classes) == 5


def test_changed_files_are_another_workload(tmp_path):
    spec = parsed(make_data(tmp_path))
    before = spec.content()
    assert before == spec.content()
    trace = tmp_path / "chunk-0-trace.csv"
    trace.write_text(trace.read_text() + "136800,9,1,Gamma,1,1\n")
    assert before != spec.content()


def test_settings_without_effect_are_told(tmp_path):
    spec = parsed(make_data(tmp_path), ", span_start: 5", "aggregate_rate: 9\n")
    trace = tmp_path / "chunk-3-trace.csv"
    trace.write_text("x\n" + trace.read_text().replace("0,1.375", "0,1_0", 1))
    with pytest.raises(ConfigError, match="line 2: has 6 cells, but the first line has 1"):
        ineffective_settings(spec)
    trace.write_text("start,rate,cv,family,shape,scale\n0,4,1,Gamma,1,1\n")
    assert ineffective_settings(spec) == [
        "aggregate_rate has no effect beside servegen_data: the data have the rates",
        "servegen_data.span_start has no effect: cohorts are of three half hours of the day",
        "chunk-3-trace.csv: left out as in BLIS, for they are no window: line 1",
    ]
    assert expanded(spec).aggregate_rate == 0


def test_cohorts_beside_the_data_come_first(tmp_path):
    spec = parsed(tmp_path / "none", top=COHORT)
    assert [client.id for client in expanded(spec).clients] == ["c-0"]
    assert "servegen_data has no effect beside cohorts" in ineffective_settings(spec)


def test_impossible_laws_name_their_cohort(tmp_path):
    dataset = {"0": {"input_tokens": "{5: 1}", "output_tokens": "{3: 1}"}}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps(dataset))
    rows = [f"{start},2,1,Poisson,1,1\n" for start in (0, 600, 1200)]
    (tmp_path / "chunk-0-trace.csv").write_text("".join(rows))
    spec = parsed(tmp_path)
    with pytest.raises(
        ConfigError, match=r"servegen_data: cohort midnight-critical: arrival.cv: got 0"
    ):
        drawn(spec)


def test_studies_take_the_data_and_no_other_rate(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    make_data(folder)
    path = tmp_path / "w.yaml"
    path.write_text(f"version: '2'\nnum_requests: 9\nservegen_data: {{path: '{folder}'}}\n")
    spec, _ = workload_for(str(path), [], 5)
    assert spec.revision == REVISED and spec.num_requests == 5
    assert make_plan(str(path), seeds=(1, 2)).requests.stream == "reference"
    with pytest.raises(ConfigError, match="--rate: the workload's rates are those of servegen_dat"):
        workload_for(str(path), [], 5, rate=3.0)
    with pytest.raises(ConfigError, match="aggregate_rate: missing"):
        workload_for(str(path), [], 5, follows=False)
