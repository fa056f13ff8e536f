import dataclasses

import numpy as np

from blis_jax.workload.table import NEVER_US, RequestTable
from surrogate.levels.covariates import COVARIATES, covariates, waits


def table_of(
    arrival_us: list[int], prompt: list[int], output: list[int], slo: list[int]
) -> RequestTable:
    """A table of these columns; a summary reads no other."""
    blank = {field.name: np.zeros(len(slo), np.int32) for field in dataclasses.fields(RequestTable)}
    given = {"arrival_us": arrival_us, "input_len": prompt, "output_len": output, "slo_class": slo}
    return RequestTable(**blank | {name: np.array(column) for name, column in given.items()})


def test_waits_are_those_of_a_queue_served_one_by_one() -> None:
    rng = np.random.default_rng(0)
    arrival, service = np.sort(rng.uniform(0, 50, 40)), rng.uniform(0.1, 3.0, 40)
    free, expected = 0.0, []
    for at, takes in zip(arrival, service, strict=True):
        expected.append(max(free - at, 0.0))
        free = max(free, at) + takes
    np.testing.assert_allclose(waits(arrival, service), expected, atol=1e-9)


def test_covariates_of_three_requests() -> None:
    table = table_of([0, 20_000, 160_000], [100, 300, 200], [10, 5, 40], [1, 2, 1])
    found = dict(zip(COVARIATES, covariates(table, 100.0), strict=True))
    assert found["span_ms"] == 160 and found["longest_output"] == 40
    assert found["last_end_at_10ms"] == 160 + 400
    assert found["tokens_per_ms_at_10ms"] == 55 / 560
    assert found["most_in_50ms"] == 2 and found["most_in_150ms"] == 2
    assert found["requests[critical]"] == 2 and found["requests[sheddable]"] == 0
    assert found["prompt_tokens[standard]"] == 300 and found["output_tokens[critical]"] == 50
    assert found["output_p50[all]"] == 10 and found["output_p50[sheddable]"] == 0
    # a request of mean length takes 10 ms at 100 requests/s: the second waits for none, at half the rate too
    assert found["wait_at_1_mean[all]"] == 0


def test_a_burst_waits_and_rows_that_pad_do_not_count() -> None:
    burst = table_of([0, 0, 0, int(NEVER_US)], [100] * 4, [10] * 4, [1, 1, 2, 1])
    found = dict(zip(COVARIATES, covariates(burst, 100.0), strict=True))
    assert found["wait_at_1_mean[all]"] == 10.0  # 0, 10 and 20 ms
    assert found["wait_at_2_mean[standard]"] == 10.0  # the last, at twice the rate
    assert found["requests[critical]"] == 2
