"""What `blis-jax run` prints and writes under `blis-2026-08`, beside what BLIS did for the same command line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_jax.run import main
from tests.metrics.test_reference import differences
from tests.support.recorded.reference_data import REPO_ROOT

FOLDER = REPO_ROOT / "tests" / "data" / "printed_2026_08"
FAST = ("priorities", "sessions")
# of requests that pools have split BLIS says incomplete and no times; see docs/how-to/trace-formats.md
OF_SPLIT = ("first_chunk_time_us", "last_chunk_time_us", "status")
OURS = ("kv", "provenance")  # parts of a results file


def names() -> list[Any]:
    found = sorted(path.stem for path in FOLDER.glob("*.json"))
    return [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow, id=name)
        for name in found
    ]


def number_in(line: str) -> tuple[str, float] | str:
    """A line of a JSON block as its name and its value."""
    found = re.fullmatch(r'  ("\w+"): (-?[\d.e+-]+),?', line)
    return (found[1], float(found[2])) if found else line


def same_lines(ours: list[str], theirs: list[str]) -> None:
    """Text for text; a number of a JSON block may differ in its last digit."""
    assert len(ours) == len(theirs)
    for one, other in zip(map(number_in, ours), map(number_in, theirs), strict=True):
        if isinstance(one, tuple) and isinstance(other, tuple):
            assert one == (other[0], pytest.approx(other[1], rel=1e-12))
        else:
            assert one == other


def requests_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(
        document.pop("requests", []), key=lambda one: (one["arrived_at"], one["requestID"])
    )


@pytest.mark.lenient_promotion
@pytest.mark.parametrize("name", names())
def test_text_and_files_are_those_of_blis(name: str, tmp_path: Path, capsys: Any):
    recorded = json.loads((FOLDER / f"{name}.json").read_text())
    words = ["--profile", "blis-2026-08", *recorded["arguments"]]
    for file, document in recorded.get("files", {}).items():
        (tmp_path / file).write_text(yaml.safe_dump(document))
        words[words.index(file)] = str(tmp_path / file)
    if recorded.get("workload"):
        (tmp_path / "workload.yaml").write_text(yaml.safe_dump(recorded["workload"]))
        words += ["--workload-spec", str(tmp_path / "workload.yaml")]
    if "replayed" in recorded:
        (tmp_path / "given.csv").write_text("\n".join(recorded["replayed"]["rows"]))
        (tmp_path / "given.yaml").write_text("\n".join(recorded["replayed"]["header"]))
        words += ["--trace", str(tmp_path / "given.csv")]
    results, trace = tmp_path / "results.json", tmp_path / "run.csv"
    assert main([*words, "--results-path", str(results), "--trace-output", str(trace)]) == 0
    same_lines(capsys.readouterr().out.splitlines(), recorded["stdout"])
    ours, theirs = json.loads(results.read_text()), recorded["results"]
    assert differences(requests_of(ours), requests_of(theirs)) == []
    assert differences({key: ours[key] for key in ours if key not in OURS}, theirs) == []
    written = [line.split(",") for line in trace.read_text().splitlines()]
    expected = [line.split(",") for line in recorded["trace"]]
    if "--prefill-instances" in words:
        left_out = [expected[0].index(column) for column in OF_SPLIT]
        for row in (*written[1:], *expected[1:]):
            for place in left_out:
                row[place] = ""
    assert written == expected
    assert trace.with_suffix(".yaml").read_text().splitlines() == recorded["header"]


def test_given_coefficients_run_on_the_models_usual_gpu(capsys: Any) -> None:
    words = (
        "--profile blis-2026-08 --model meta-llama/llama-3.1-8b-instruct --rate 2 --num-requests 2"
    )
    lengths = "--prompt-tokens 90 --output-tokens 3"
    alpha = "--alpha-coeffs 9671.224,209.205,20.766"
    beta = "--beta-coeffs 0.1106,0.4397,1.5865,0.2847,32.6352,4.4422,76.4777"
    assert main(f"{words} {lengths} {alpha} {beta}".split()) == 0
    printed, said = capsys.readouterr()
    figures = json.loads(printed.partition("\n")[2])
    of_blis = {"total_output_tokens": 701, "e2e_mean_ms": 2732.7075, "ttft_p99_ms": 20.8346}
    assert {name: figures[name] for name in of_blis} == of_blis
    assert "1 H100" in said
