"""What a refusal offers in the place of an unknown word, and the folders of outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.commands import cli
from blis_jax.errors import MOST_LISTED, ConfigError, choices

MANY = [f"strategy{number:02}_of_many" for number in range(MOST_LISTED + 1)]


@pytest.mark.parametrize(
    ("word", "allowed", "sentence"),
    [
        ("blu", ["blue", "red"], "use one of blue, red; did you mean 'blue'?"),
        ("x", ["blue", "red"], "use one of blue, red"),
        ("tree", [*MANY, "trees", "treed"], "did you mean 'trees' or 'treed'? (23 are known)"),
        ("oak", [*MANY, "an_oak_of_old"], "did you mean 'an_oak_of_old'? (22 are known)"),
        ("x", MANY, f"use one of {', '.join(MANY)}"),
    ],
)
def test_a_short_list_is_given_whole_and_a_long_one_by_its_nearest(
    word: str, allowed: list[str], sentence: str
) -> None:
    assert choices(word, allowed) == sentence


def test_the_folder_of_an_output_is_made_unless_a_file_is_in_the_way(tmp_path: Path) -> None:
    cli.check_writable(tmp_path / "new" / "deep" / "result.json")
    assert (tmp_path / "new" / "deep").is_dir()
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="taken is not a folder"):
        cli.check_writable(tmp_path / "taken" / "result.json")
