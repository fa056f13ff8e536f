import json
import re
from pathlib import Path

import pytest

from blis_jax.calibrate.__main__ import main
from blis_jax.calibrate.validation import ErrorRow, FitVerdict
from tests.support.recorded.reference_data import REPO_ROOT

EXAMPLE = str(REPO_ROOT / "examples" / "measured_run")


def test_the_example_run(tmp_path: Path, capsys):
    output = tmp_path / "fit.json"
    sizes = ["--fit-first", "60", "--starts", "1", "--explore", "false"]
    code = main([EXAMPLE, *sizes, "--output", str(output)])
    assert code == 0
    printed = capsys.readouterr()
    assert (
        re.search(r"^held out +TTFT +mean ", printed.out, re.MULTILINE)
        and "KV blocks:" in printed.err
    )
    document = json.loads(output.read_text())
    assert document["kind"] == "calibration" and document["profile"].endswith("corrected")
    held_out = {
        row["metric"]: row["error"]
        for row in document["errors"]
        if (row["part"], row["statistic"]) == ("held out", "mean")
    }
    assert abs(held_out["tpot_ms"]) < 0.03 and abs(held_out["ttft_ms"]) < 0.1
    assert output.with_suffix(".png").stat().st_size > 10_000
    assert "same episode" in printed.out and "training mean" in printed.out
    assert printed.out.startswith("Cluster: example/made-up-7b; 1 instance × 1 GPU = 1 GPU; ")
    assert "Verdict: the fit describes its run: the mean that is furthest" in printed.out
    assert document["verdict"]["describes"]
    # the same coefficients on the same requests, without a fit
    assert main([EXAMPLE, "--coefficients-from", str(output)]) == 0
    said = capsys.readouterr()
    predicted = said.out
    assert "does NOT describe" not in said.err
    # a fit that its own command called unusable
    document["verdict"] = FitVerdict.of([ErrorRow("all", "ttft_ms", "mean", 400.0, 5.0)])._asdict()
    output.write_text(json.dumps(document))
    assert main([EXAMPLE, "--coefficients-from", str(output)]) == 0
    assert "the fit does NOT describe its run: mean TTFT -98.8 %" in capsys.readouterr().err
    of_all = [line for line in printed.out.splitlines() if line.startswith("all  ")]
    assert of_all and of_all == [
        line for line in predicted.splitlines() if line.startswith("all  ")
    ]


@pytest.mark.slow
def test_exploring_widens_the_intervals(tmp_path: Path, capsys):
    """The usual way: intervals over all fits that do nearly as well, from more simulations.

    Predictions have them too, of the requests held out and of another run.
    """
    found = []
    for explore in ("false", "true"):
        output = tmp_path / f"{explore}.json"
        sizes = ["--fit-first", "40", "--starts", "1", "--figure", "none"]
        assert main([EXAMPLE, *sizes, "--explore", explore, "--output", str(output)]) == 0
        found.append(json.loads(output.read_text()))
    local, explored = found
    assert explored["fit"]["num_simulations"] > 2 * local["fit"]["num_simulations"]
    assert explored["fit"]["cost"] <= local["fit"]["cost"]
    for term, one in explored["coefficients"].items():
        assert one["low"] <= one["value"] <= one["high"]
        before = local["coefficients"][term]
        assert one["high"] - one["low"] > 0.9 * (before["high"] - before["low"])
    rows = [row for row in explored["errors"] if "low" in row]
    assert len(rows) == 12 and {row["part"] for row in rows} == {"held out"}
    assert sum(row["low"] <= row["measured"] <= row["high"] for row in rows) >= 10
    assert not any("low" in row for row in local["errors"])
    predicted = tmp_path / "predicted.json"
    fit = ["--coefficients-from", str(tmp_path / "true.json"), "--output", str(predicted)]
    assert main([EXAMPLE, *fit]) == 0
    rows = json.loads(predicted.read_text())["errors"]
    assert len(rows) == 12 and all(row["low"] < row["high"] for row in rows)
    assert "95 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "TRACE is missing"),
        (["nowhere"], "does not exist"),
        ([EXAMPLE, "--terms", "beta0,gamma"], "'gamma' is unknown"),
        ([EXAMPLE, "--terms", "beta1"], "decode steps take no time"),
        ([EXAMPLE, "--starts", "0"], "--starts: got 0"),
        ([EXAMPLE, "--fit-first", "3"], "--fit-first: got 3, allowed is 5 to 80"),
        ([EXAMPLE, "--total-kv-blocks", "0"], "at least 1"),
        ([EXAMPLE, "--output", "fit.txt"], "must end in .json"),
        pytest.param(
            [EXAMPLE, "--total-kv-blocks", "20"],
            "do not finish|KV blocks",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bad_input_is_one_sentence(
    options: list[str], words: str, tmp_path: Path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(options) == 2
    import re

    message = capsys.readouterr().err
    assert re.search(words, message) and "Traceback" not in message
    assert not list(tmp_path.glob("**/*.json"))
