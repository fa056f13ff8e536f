"""Seeds, windows of a trace, and one run of it, in words."""

from __future__ import annotations

from blis_jax.reports.study import DRAWN, ONE_RUN, SEEDS, WINDOWS, run_words, words_of


def test_which_word_is_meant() -> None:
    assert run_words(None, 20) is SEEDS
    assert run_words({"windows": 4}, 4) is WINDOWS
    assert run_words({"windows": None}, 3) is DRAWN
    assert run_words({"windows": None}, 1) is ONE_RUN
    assert words_of({"seeds": [1, 2], "trace": {"windows": 2}}) is WINDOWS


def test_runs_are_counted_and_listed() -> None:
    assert SEEDS.listed([42]) == "one random seed (42)"
    assert SEEDS.listed([42, 43, 44], has_kind=False) == "3 seeds (42 to 44)"
    assert WINDOWS.listed([1, 2, 3]) == "3 windows (1 to 3)"
    assert SEEDS.listed(range(0, 20, 2)) == "10 random seeds (0, 2, 4, 6, 8, 10, 12, 14, …)"
    assert (WINDOWS.counted(1), WINDOWS.counted(2)) == ("1 window", "2 windows")


def test_a_sentence_about_seeds_is_said_of_windows() -> None:
    text = (
        "the same on every seed; these seeds, --seeds 3, seed=4, policy_seed and out/seed.json stay"
    )
    said = WINDOWS.in_text(text)
    assert said.startswith(
        "the same on every window; these windows, --seeds 3, seed=4, policy_seed"
    )
    assert said.endswith("out/seed.json stay") and SEEDS.in_text(text) == text
