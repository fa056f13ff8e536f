"""The saved tables, and the commands that datasets and surrogates are made with."""

import pandas as pd
import pytest

from papers.surrogate import __main__ as command
from papers.surrogate.spaces import MOST_WANTED, SPACES


def test_saved_tables_are_printed_without_computing(capsys: pytest.CaptureFixture) -> None:
    assert command.main(["--saved", "--spaces", "iter08"]) == 0
    said = capsys.readouterr().out
    assert "outputs meet their bar" in said and MOST_WANTED in said and "Rejected" in said


def test_saved_bars_follow_from_the_numbers() -> None:
    table = pd.read_csv(command.SAVED / "iter08_bars.csv").set_index("output")
    assert table.loc[MOST_WANTED, "r2"] >= 0.98
    others = table.drop(index=MOST_WANTED)
    is_reached = (others["r2"] >= 0.95) | (others["r2"] >= 0.9 * others["reliability"])
    assert (is_reached == (others["bar"] == "met")).all()
    assert (table["num_points"] >= 1000).all()


def test_every_space_is_a_dataset_that_the_command_accepts() -> None:
    from sweeps.dataset.__main__ import _parser, _sizes

    for space in SPACES.values():
        for scale in (1.0, 0.01):
            given = _parser().given(space.dataset_arguments("x.zarr", scale))
            sizes = _sizes(given)
            assert sizes.train_seeds <= sizes.seeds
        assert sizes.num_runs < 2000


def test_fresh_points_are_other_points_of_the_same_population() -> None:
    from sweeps.dataset.__main__ import _parser, _sizes

    space = SPACES["iter08"]
    first, fresh = (
        _parser().given(words)
        for words in (space.dataset_arguments("x.zarr", 1), space.fresh_arguments("y.zarr", 1))
    )
    assert first["strategy"] == fresh["strategy"] and first["seeds"] == fresh["seeds"]
    assert first.get("random_state", 0) != fresh["random_state"]
    assert _sizes(fresh).test == 1024 and _sizes(fresh).train == 16
    assert _sizes(fresh).first_seed == _sizes(first).first_seed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--spaces", "iter8"], "did you mean 'iter08'"),
        (["--parts", "bar"], "did you mean 'bars'"),
        (["--scale", "2"], "--scale: got 2"),
    ],
)
def test_wrong_input_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    assert command.main(words) == 2
    assert said in capsys.readouterr().err
