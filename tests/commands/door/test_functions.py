"""Commands as functions: found by `dir`, told by `help`, and what they return as text, tables and pictures."""

from __future__ import annotations

import importlib
import inspect
import json
import pydoc
from pathlib import Path

import numpy as np
import pytest

import blis_jax
from blis_jax import ConfigError, StudyResult
from blis_jax.commands.door import functions
from blis_jax.commands.door.catalogue import COMMANDS
from blis_jax.commands.door.functions import QUESTIONS
from blis_jax.reports.findings import Answer, Findings, Quantity, Row, Table
from tests.sweeps.busy import NUM_SEEDS, write_strategies

SMALL = {
    "bootstrap": 199,
    "metrics": ["ttft_mean_ms", "tokens_per_sec"],
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    base, other = write_strategies(tmp_path_factory.mktemp("strategies"))
    return blis_jax.compare(f"base={base}", f"other={other}", seeds=NUM_SEEDS, **SMALL)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_function_is_listed_and_explains_its_command(name: str) -> None:
    function = getattr(functions, name)
    assert name in dir(blis_jax) and name in blis_jax.__all__
    assert QUESTIONS[name].command in COMMANDS
    keywords = list(inspect.signature(function).parameters)[1:]
    told = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert keywords and all(f"    {key}: " in told for key in keywords)
    assert not {"quiet", "all", "help"} & {*keywords}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_only_read_back_ends_as_its_command_asks(name: str) -> None:
    told = inspect.getdoc(getattr(functions, name)) or ""
    (output,) = [line for line in told.splitlines() if line.strip().startswith("output: ")]
    assert QUESTIONS[name].ending.strip("/") in output


def test_a_result_is_text_tables_and_a_page_of_a_notebook(
    result: StudyResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(result).startswith("Cluster:") and "Verdict:" in repr(result)
    assert result.verdict in " ".join(str(result).split())
    page = result._repr_html_()
    brief = [one for one in result.tables.values() if one.brief().rows]
    assert page.count("<table") == len(brief) > 0 and "<svg" in page and "Verdict" in page
    assert "Written" not in result.text  # the files of a call without an output are gone
    assert capsys.readouterr().out == ""  # nothing is printed


def test_tables_have_numbers_intervals_and_units(result: StudyResult) -> None:
    frame = result.to_dataframe()
    row = frame[(frame["class"] == "all") & (frame["metric"] == "TTFT mean, ms")].iloc[0]
    assert row["unit"] == "ms"
    (kept,) = [
        one
        for one in result.document["comparisons"]
        if (one["class"], one["metric"]) == ("all", "ttft_mean_ms")
    ]
    assert row["difference [95 %]"] == pytest.approx(kept["difference"]["mean"])
    assert row["difference [95 %] low"] == pytest.approx(kept["difference"]["low"])
    dataset = result.to_dataset("differences")
    assert {"class", "metric"} <= set(dataset.coords)
    assert dataset["base"].attrs["long_name"] == "base"
    np.testing.assert_array_equal(dataset["base"], frame["base"])
    assert dataset["base"].attrs["units"] == "that of `unit`"
    assert dataset["in % [95 %] low"].attrs["units"] == "%"
    parts = result.to_dataset("TTFT by component, ms (mean over seeds)")
    assert parts["TTFT"].attrs["units"] == "ms"
    with pytest.raises(ConfigError, match="table 'differnces': use one of differences"):
        result.to_dataset("differnces")


def test_columns_have_the_units_of_numbers_headings_rows_or_title() -> None:
    columns = ("", "TTFT P99, ms", "in % of a", "GPUs", "of the whole", "")
    cells = (
        "1",
        Quantity(3.0),
        Quantity(-5.0, -6.0, -4.0),
        Quantity.whole(2),
        Quantity(9.0, unit=" %"),
        "better",
    )
    frame = StudyResult(
        Findings(Answer.of(*"abcde"), (Table(columns, (Row(cells),)),), ())
    ).to_dataframe()
    assert list(frame) == [
        "rank", "TTFT P99, ms", "in % of a", "in % of a low", "in % of a high", "GPUs", "of the whole", "verdict",
    ]  # fmt: skip
    assert list(frame.attrs["units"].values()) == ["ms", "%", "%", "%", "1", "%"]
    with pytest.raises(ConfigError, match="this result has none"):
        StudyResult(Findings(Answer.of(*"abcde"))).plot()
    points = Table(("parameter", "value"), (Row(("8", "1e-3")), Row(("9", "2.5"))))
    frame = StudyResult(Findings(Answer.of(*"abcde"), (points,), ())).to_dataframe()
    assert frame["parameter"].tolist() == ["8", "9"] and frame["value"].tolist() == [0.001, 2.5]


def test_a_picture_is_a_figure_that_a_notebook_shows(result: StudyResult) -> None:
    figure = result.plot()
    assert figure.axes and figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="picture 99 is not there"):
        result.plot(99)


def test_errors_are_pythons() -> None:
    with pytest.raises(ConfigError, match=r"has no option 'seedz'; did you mean 'seeds'"):
        blis_jax.compare("vllm", "llm-d-default", seedz=3)
    with pytest.raises(ConfigError, match="did you mean 'vllm'"):
        blis_jax.compare("vlm", "llm-d-default", seeds=3)
    with pytest.raises(AttributeError):
        blis_jax.compere  # noqa: B018


@pytest.mark.parametrize("kind", functions.LISTS)
def test_a_list_is_a_table_of_all_its_names(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = blis_jax.list_names(kind)
    frame = found.to_dataframe()
    assert COMMANDS[kind].main()([]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in frame["name"]) and len(frame) > 5
    assert found.verdict == f"{len(frame)} names."
    assert found.to_dataset().sizes["row"] == len(frame) and "<table" in found._repr_html_()


def test_a_list_shows_what_is_asked_for() -> None:
    frame = blis_jax.list_names("policies", "prefix-cache-scorer").to_dataframe()
    assert set(frame["name"]) == {"prefix-affinity", "precise-prefix-cache"}
    with pytest.raises(ConfigError, match="did you mean 'models'"):
        blis_jax.list_names("model")
    with pytest.raises(ConfigError, match="no line of gpus has the text 'H1000'; did you mean"):
        blis_jax.list_names("gpus", "H1000")


def test_a_file_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    base, other = write_strategies(tmp_path)
    output = tmp_path / "out.json"
    found = blis_jax.compare(str(base), str(other), seeds=range(2), output=output, **SMALL)
    assert json.loads(output.read_text()) == found.document
    assert found.document["seeds"] == [0, 1]
    assert not (tmp_path / "out.png").exists()  # `plot` draws


def test_runs_that_are_kept_come_back_as_a_dataset() -> None:
    importlib.import_module("blis_jax.sweep")  # the command's module has the function's name
    swept = blis_jax.sweep(
        strategy=["vllm:num_instances=2"], seeds=3, set=["workload.num_requests=30"]
    )
    dataset = swept.to_dataset()
    assert dataset.sizes["seed"] == 3 and dataset["ttft_mean_ms"].attrs["units"] == "ms"
