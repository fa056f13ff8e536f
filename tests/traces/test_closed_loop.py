"""Sessions of a trace whose later rounds wait for their answers: contents, think times, bad input."""

import math

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces.closed_loop import closed_loop_of_trace, end_of, parse_think_time
from blis_jax.traces.rows import Report
from blis_jax.workload.go_random import Stream
from blis_jax.workload.reference.follow_up_table import closed_loop_table
from tests.traces.formats.test_trace_v3 import HEADER, YAML, line


def session(number, arrival_us, turn, **more):
    return line(number, arrival_us, session_id="s", round_index=str(turn), **more)


ROWS = (
    session(7, 100, 0, input_tokens="20", output_tokens="4", prefix_group="g", prefix_length="16"),
    line(5, 50, client_id="c", model="m", deadline_us="900"),
    session(9, 5_000, 2, input_tokens="3", output_tokens="2", prefix_group="g"),
    session(8, 3_000, 1, input_tokens="6", output_tokens="5", prefix_group="g"),
)


def read(tmp_path, rows=ROWS, header=YAML, **options):
    (tmp_path / "t.csv").write_text(HEADER + "".join(rows))
    (tmp_path / "t.yaml").write_text(header)
    return closed_loop_of_trace(tmp_path / "t.csv", tmp_path / "t.yaml", 42, Report(), **options)


def test_later_rounds_have_the_lengths_and_gaps_of_the_trace(tmp_path):
    workload = read(tmp_path)
    assert [one.number for one in workload.requests] == [5, 7]
    assert workload.requests[0].deadline_us == 900 and workload.horizon_us == 200
    loop = closed_loop_table(workload)
    assert loop.parent.tolist() == [-1, -1, 1, 2]
    assert loop.think_time_us.tolist() == [0, 0, 2_900, 2_000]
    assert loop.table.input_len.tolist() == [100, 36, 22, 19]
    assert loop.table.output_len.tolist() == [20, 4, 5, 2]
    assert loop.timeout_us.tolist() == [850, 0, 300_000_000, 300_000_000]
    assert loop.names.models.tolist() == ["m", "", "", ""]


def test_prompts_grow_where_the_header_says_so(tmp_path):
    workload = read(tmp_path, header=YAML + "session_context_growth: accumulate\n", horizon_us=9)
    loop = closed_loop_table(workload)
    # an answer counts without its last token
    assert loop.table.input_len.tolist() == [100, 36, 36 + 3 + 6, 36 + 3 + 6 + 4 + 3]
    prompts = [np.concatenate(one.prompt) for one in loop.requests[1:]]
    assert np.array_equal(prompts[2][:45], prompts[1]) and workload.horizon_us == 9


def test_think_times_of_the_trace_and_of_a_law(tmp_path):
    names = HEADER.strip() + ",think_time_us\n"
    rows = [row.strip() + f",{think}\n" for row, think in zip(ROWS, (1, 2, 30, 40), strict=True)]
    (tmp_path / "t.csv").write_text(names + "".join(rows))
    (tmp_path / "t.yaml").write_text(YAML)
    files = tmp_path / "t.csv", tmp_path / "t.yaml", 42, Report()
    assert closed_loop_table(closed_loop_of_trace(*files)).think_time_us.tolist() == [0, 0, 40, 30]
    law = parse_think_time("constant:value=5ms")
    drawn = closed_loop_table(closed_loop_of_trace(*files, think_time=law))
    assert drawn.think_time_us.tolist() == [0, 0, 5_000, 5_000]


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("constant:value=500ms", 500_000, 500_000),
        ("constant:value=2", 2_000, 2_000),
        ("constant:value=0s", 1, 1),
        ("lognormal:mu=2.0,sigma=0.6,min=3s,max=30s", 3_000_000, 30_000_000),
        ("lognormal:mu=-9, sigma=0.1, max=150us", 60, 150),
    ],
)
def test_laws_of_think_times(text, least, most):
    law, stream = parse_think_time(text), Stream(1)
    drawn = [law(stream) for _ in range(200)]
    assert least <= min(drawn) and max(drawn) <= most


@pytest.mark.parametrize(
    "text",
    [
        "gamma:mu=1,sigma=1", "lognormal", "lognormal:mu=1", "constant:", "constant:value", "constant:value=x",
        "constant:value=-1s", "constant:value=1,value=2", "lognormal:mu=1,sigma=0", "lognormal:mu=inf,sigma=1",
        "lognormal:mu=1,sigma=1,min=5s,max=1s", "constant:value=1,max=2",
    ],
)  # fmt: skip
def test_other_laws_are_refused(text):
    with pytest.raises(ConfigError, match="--think-time-dist"):
        parse_think_time(text)


def test_rounds_are_numbered_from_0_on(tmp_path):
    with pytest.raises(ConfigError, match=r"session 's' has round 1 in place of round 0"):
        read(tmp_path, [ROWS[3]])


def test_the_end_of_a_replay():
    assert (end_of(500), end_of(0)) == (1000, 600_000_000)
    assert not math.isinf(end_of(2**60))
