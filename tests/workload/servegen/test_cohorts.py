"""ServeGen data as cohorts: names, members and numbers are those of BLIS's `convert servegen`."""

import hashlib

import pytest

from blis_jax.commands.workload_files import convert as main
from blis_jax.errors import ConfigError
from blis_jax.workload.go_random import Stream
from blis_jax.workload.servegen.cohorts import cohorts_of
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import parse_spec
from tests.traces.scenes import real_file
from tests.workload.servegen.scenes import make_data

# of BLIS's texts
DAY, REASONS = (
    "c9e9cd720503551d5c7877b35f77a33a0d254842a42ec1b632509ee8921ffbf9",
    "2ece9634e9830fdec78c58b653199089ec4695b529140c630be60cc8785ef6ef",
)
REAL = {
    "language/m-small": "996228d1393f3a3bdbe0ca5ebd519799fe732e9efa26f4444a64ece18338ac5e",
    "reason/deepseek-r1": "d424e9a76bffe62f8558dcb3a20e5e35663b2fc6a51f8882e4409f5c11807000",
}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_periods_of_the_day_are_the_text_of_the_reference(tmp_path, capsys):
    assert main(["servegen", "--path", str(make_data(tmp_path))]) == 0
    text = capsys.readouterr().out
    cohorts = parse_spec(text, "w", REVISED).cohorts
    first, last = cohorts[0], cohorts[-1]
    assert (first.id, first.population, first.arrival.process) == (
        "midnight-background",
        1,
        "gamma",
    )
    assert (first.spike.start_time_us, first.spike.trace_rate) == (0, 3.25)
    assert first.input_distribution.params.mu == 4.260869821626486
    assert (last.id, last.arrival.process) == ("afternoon-standard", "weibull")
    assert (last.spike.start_time_us, last.spike.trace_rate) == (1_560_000_000, 3.625)
    assert last.output_distribution.params.sigma == 0.7790723090232738
    assert digest(text) == DAY


def test_requests_that_reason_are_the_text_of_the_reference(tmp_path, capsys):
    assert main(["servegen", "--path", str(make_data(tmp_path, reasons=True))]) == 0
    text, said = capsys.readouterr()
    cohorts = parse_spec(text, "w", REVISED).cohorts
    assert [(each.id, each.population) for each in cohorts] == [
        ("reasoning-background", 1),
        ("reasoning-batch", 1),
        ("reasoning-critical", 2),
        ("reasoning-standard", 2),
    ]
    assert cohorts[2].spike.trace_rate == 4.125 and cohorts[2].closed_loop is False
    assert "reasoning-sheddable is left out" in said
    assert digest(text) == REASONS


@pytest.mark.parametrize("name", REAL)
def test_real_data_are_the_text_of_the_reference(name, capsys):
    assert main(["servegen", "--path", str(real_file(f"servegen_sample/{name}"))]) == 0
    assert digest(capsys.readouterr().out) == REAL[name]


def test_periods_last_and_stand_apart_as_told(tmp_path, capsys):
    words = ["--window-duration-seconds", "60", "--drain-timeout-seconds", "5", "--time", "morning"]
    assert main(["servegen", "--path", str(make_data(tmp_path)), *words]) == 0
    cohorts = parse_spec(capsys.readouterr().out, "w", REVISED).cohorts
    assert {each.id.split("-")[0] for each in cohorts} == {"morning"}
    assert {(each.spike.start_time_us, each.spike.duration_us) for each in cohorts} == {
        (65_000_000, 60_000_000)
    }


def test_numbers_are_shuffled_as_go_does():
    assert Stream(42).shuffled(7) == [1, 6, 4, 5, 3, 0, 2]


def test_data_without_a_way_to_cohorts_are_refused(tmp_path, capsys):
    assert main(["servegen"]) == 2
    assert main(["servegen", "--path", str(tmp_path)]) == 2
    make_data(tmp_path, reasons=True)
    assert main(["servegen", "--path", str(tmp_path), "--time", "morning"]) == 2
    said = capsys.readouterr().err
    assert "--path is missing" in said and "holds no chunk-*-trace.csv" in said
    assert "--time has no meaning" in said
    (tmp_path / "chunk-0-trace.csv").write_text("7200,1,1,Gamma,1,1\n")
    (tmp_path / "chunk-0-dataset.json").write_text(
        '{"0": {"input_tokens": "{5: 1}", "output_tokens": "{0: 1}"}}'
    )
    for number in range(1, 7):
        (tmp_path / f"chunk-{number}-trace.csv").unlink()
    with pytest.raises(ConfigError, match="fit no lognormal law"):
        cohorts_of(tmp_path, 42, 600, 180)
    (tmp_path / "chunk-0-dataset.json").write_text(
        '{"0": {"input_tokens": "{5: 1}", "output_tokens": "{3: 1}"}}'
    )
    with pytest.raises(ConfigError, match="no client sends requests in the windows taken"):
        cohorts_of(tmp_path, 42, 600, 180)
