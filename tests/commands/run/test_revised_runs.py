"""Recorded runs of August 2026 with closed loops, from the recorded command lines."""

import numpy as np
import pandas
import pytest

from blis_jax.cluster.config import FIELDS
from blis_jax.records.record import Status
from blis_jax.run import main
from tests.support.recorded.revised_data import COMMANDS, FOLDER, recorded

pytestmark = [
    pytest.mark.golden,
    pytest.mark.slow,
    pytest.mark.lenient_promotion,  # the engine adds flags to counts
    pytest.mark.skipif("revision" not in FIELDS, reason="the engine has one revision of BLIS only"),
]
SCENARIOS = {
    command["scenario"]: (name, command["cli_args"])
    for name, command in COMMANDS.items()
    if (FOLDER / "scenarios" / f"{command['scenario']}.npz").exists()
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_arrivals_and_latencies_are_the_recorded_ones(scenario, tmp_path, capsys):
    workload, words = SCENARIOS[scenario]
    given = [str(FOLDER / word) if word.startswith("specs/") else word for word in words[1:]]
    output = ["--trace-output", str(tmp_path / "run.csv"), "--no-cache", "true"]
    assert main(["--profile", "blis-2026-08", *given, *output]) == 0, capsys.readouterr().err
    run = pandas.read_csv(tmp_path / "run.csv")
    with np.load(FOLDER / "scenarios" / f"{scenario}.npz") as file:
        theirs = dict(file)
    assert np.array_equal(run.arrival_time_us, recorded(workload)["arrival_us"])
    is_done = theirs["status"] == Status.COMPLETED
    assert np.array_equal(run.status == "ok", is_done)  # the others have no times in BLIS's arrays
    ttft_us = run.first_chunk_time_us - run.arrival_time_us
    assert np.array_equal(ttft_us[is_done], theirs["ttft_us"][is_done])
    decode_us = run.last_chunk_time_us - run.first_chunk_time_us
    assert np.array_equal(decode_us[is_done], theirs["itl_sum_us"][is_done])
