"""The command that measures how often a calibration's intervals hold what is true."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.coverage import calibration
from benchmarks.coverage.calibration import (
    ALIKE,
    FIGURES,
    KINDS,
    TRUE,
    disturbances,
    main,
    server,
    servers,
    tables,
)


def test_neighbours_are_alike_only_where_said():
    for kind in KINDS:
        drawn = disturbances(kind, 20_000, np.random.default_rng(0))
        assert drawn.std() == pytest.approx(1.0, abs=0.05)
        alike = ALIKE if kind == KINDS[1] else 0.0
        for row in drawn:
            assert np.corrcoef(row[1:], row[:-1])[0, 1] == pytest.approx(alike, abs=0.03)


@pytest.mark.slow
def test_a_cost_that_is_not_fitted_makes_decoding_longer():
    plain, _ = server(KINDS[0], 30, 1)
    again, _ = server(KINDS[0], 30, 1)
    np.testing.assert_array_equal(plain.e2e_us, again.e2e_us)
    other, _ = server(KINDS[2], 30, 1)
    assert np.median(other.tpot_us) > 1.02 * np.median(plain.tpot_us)


def row(kind: str, seed: int, **changes) -> dict:
    """A server whose intervals hold what is true, by a fiftieth to each side."""
    ends = TRUE[:, None] * np.array([0.98, 1.02])
    sizes = {"num_requests": 20, "starts": 1, "explore": True}
    known = {"intervals": ends.tolist(), "is_identified": [False, True, True, True]}
    predicted = {name: [10.0, 9.0, 12.0] for name in FIGURES}
    return {"kind": kind, "seed": seed, **sizes, **known, "predicted": predicted, **changes}


def test_shares_are_of_servers():
    """Three servers: an interval that misses, one that is not identified, and a prediction that is too low."""
    off = [*row(KINDS[0], 1)["intervals"][:1], [1.0, 2.0], *row(KINDS[0], 1)["intervals"][2:]]
    low = {name: [10.0, 9.0, 9.5] for name in FIGURES}
    rows = [
        row(KINDS[0], 0),
        row(KINDS[0], 1, intervals=off),
        row(KINDS[0], 2, is_identified=[False, True, False, True], predicted=low),
    ]
    lines = tables(rows)
    cells = lines[2].strip("| ").split(" | ")
    assert cells[0] == KINDS[0] and len(lines) == 3 + 3 + len(FIGURES)
    assert [cell.partition("; ")[2].partition(", ")[0] for cell in cells[1:]] == [
        *("identified 0 of 0", "identified 2 of 3", "identified 2 of 2", "identified 3 of 3")
    ]
    assert cells[1].startswith("100.0 % [") and cells[2].startswith("66.7 % [")
    assert "±2 %" in cells[1] and lines[-1].startswith("| e2e_ms p99 | 66.7 % [")
    assert tables([*rows, row(KINDS[1], 0)])[4].startswith("| all | 100.0 %")


def test_servers_in_the_file_are_not_calibrated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where the last line was cut off; other sizes are other servers."""
    made = []

    def outcome(**one):
        made.append((one["kind"], one["seed"]))
        return row(**one)

    monkeypatch.setattr(calibration, "outcome", outcome)
    path, sizes = tmp_path / "kept.jsonl", {"num_requests": 20, "starts": 1, "explore": True}
    first = servers(path, KINDS[:2], range(2), sizes)
    path.write_text(path.read_text() + '{"kind": "indep')
    again = servers(path, KINDS[:2], range(3), sizes)
    assert servers(path, KINDS[:2], range(3), sizes) == again and again[:4] == first
    assert len(made) == 6 and len(set(made)) == 6
    servers(path, KINDS[:1], range(1), {**sizes, "starts": 2})
    assert len(made) == 7


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "kept.jsonl").write_text('{"kind": 1}\n{}\n')
    assert main(["--kept", str(tmp_path / "kept.jsonl")]) == 2
    assert "is no server; give another file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fit_goes_through_the_whole_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = ["--repetitions", "2", "--num-requests", "20", "--starts", "1"]
    kept = ["--kept", str(tmp_path / "kept.jsonl")]
    assert main([*sizes, *kept, "--explore", "false"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in rows[2:6]] == [f"| {kind}" for kind in (*KINDS, "all")]
    assert "2 servers of each kind, 20 requests, 1 starts" in rows[6]
    assert main([*sizes, *kept, "--kind", KINDS[0]]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[-2].startswith("| e2e_ms p99 | ")


def test_sizes_that_say_nothing_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["--repetitions", "1"]) == 2
    assert "--repetitions: got 1, allowed is 2 or more" in capsys.readouterr().err
