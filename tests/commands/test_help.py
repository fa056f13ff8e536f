"""One meaning, one name, one default in every command; older spellings are understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_jax.commands.door.catalogue import options_of, parsers
from blis_jax.commands.door.declarations import page
from blis_jax.commands.help import (
    BY_NAME,
    FULL,
    SELDOM,
    USUAL_SETTINGS,
    VARIES,
    first_spelling,
    spellings,
    written,
)
from blis_jax.commands.options.seed_options import (
    SeedOptions,
    given_seeds,
    listed_seeds,
    seeds_of,
    seeds_text,
)
from blis_jax.commands.parser import Flag, Parser
from blis_jax.errors import ConfigError

ROOT = Path(__file__).parents[2]
PARSERS = parsers()
# BLIS's own names come first in its commands `run` and `replay`; the trace's seed is that of `run`
OWN = {
    "run": {"workload-spec", "results-path", "requests", "workload"},
    "replay": {"results-path"},
}
OLDER = {word: one.name for one in BY_NAME.values() for word in one.also}


def test_the_page_is_what_the_commands_declare() -> None:
    """Make it again with `blis-jax options > docs/options.md`."""
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("command", PARSERS)
def test_help_is_a_screen_or_two_and_all_options_are_behind_one_word(command: str) -> None:
    parser = PARSERS[command]
    short, full = written(parser, parser.seldom), parser.format_help()
    assert len(short.splitlines()) <= 100
    shown = {first_spelling(one): one for one in options_of(parser) if one.dest != "help"}
    assert all(f"  {name} " in full or f"  {name}\n" in full for name in shown)
    left_out = {
        one.option_strings[0]
        for name, one in shown.items()
        if f"  {name} " not in short and f"  {name}\n" not in short
    }
    assert left_out == parser.seldom
    assert (f"{FULL} shows {len(left_out)} further options." in short) == bool(left_out)


def test_what_help_leaves_out_is_an_option_of_some_command() -> None:
    names = {
        name for one in PARSERS.values() for name in one._option_string_actions
    }  # also of `run --scenario`
    assert {f"--{name}" for name in SELDOM | USUAL_SETTINGS} <= names


def test_help_begins_with_the_names_of_vllm() -> None:
    """An option of `vllm serve` is shown under its name there; BLIS's name stands behind it."""
    shown = written(PARSERS["run"], PARSERS["run"].seldom)
    for theirs, ours in (("max-num-seqs", "max-num-running-reqs"), ("tensor-parallel-size", "tp")):
        place = shown.index(f"  --{theirs} N ")
        assert f"(also --{ours})" in " ".join(shown[place : place + 300].split())
        assert f"  --{ours} " not in shown


@pytest.mark.parametrize("command", PARSERS)
def test_options_have_their_one_name(command: str) -> None:
    declared = [flag.name.split("/")[0] for flag in PARSERS[command].flags if flag.help]
    declared += [name.split("/")[0] for name in PARSERS[command].switches]
    for name in declared:
        assert name not in OLDER or name in OWN.get(command, ()), f"--{name} is --{OLDER[name]}"


@pytest.mark.parametrize("command", PARSERS)
def test_older_spellings_are_understood(command: str) -> None:
    parser, own = PARSERS[command], OWN.get(command, set())
    known = parser._option_string_actions
    for name in [flag.name.split("/")[0] for flag in parser.flags] + list(parser.switches):
        for older in set(spellings(name)) - own:
            is_own = name == "seeds" and known[f"--{older}"].dest == "num_seeds"  # beside a list
            assert is_own or known[f"--{older}"] is known[f"--{name}"], (name, older)


@pytest.mark.parametrize("command", PARSERS)
def test_options_have_their_one_default(command: str) -> None:
    for flag in PARSERS[command].flags:
        shared = BY_NAME.get(flag.name.split("/")[0])
        if shared is None or shared.default is VARIES or flag.default in (None, ()):
            continue  # None: the default is that of a file, and the help says so
        usual = shared.elsewhere.get(command, (shared.default, ""))[0]
        assert flag.default == usual, f"--{shared.name} is {flag.default} by default"


def test_another_default_is_one_that_a_command_has() -> None:
    for shared in BY_NAME.values():
        for command, (other, reason) in shared.elsewhere.items():
            found = [one for one in PARSERS[command].flags if one.name.split("/")[0] == shared.name]
            assert [one.default for one in found] == [other] and reason


# --- seeds ----------------------------------------------------------------------------------------


def read(*words: str, usual: int = 3, rng: str = "reference") -> tuple[int, ...]:
    return seeds_of(SeedOptions.read(words), usual, rng)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (42, 43, 44)),
        (("--seeds", "2"), (42, 43)),
        (("--num-seeds", "2"), (42, 43)),
        (("--vmap-seeds", "2"), (42, 43)),
        (("--first-seed", "7"), (7, 8, 9)),
        (("--seeds", "2", "--first-seed", "7"), (7, 8)),
        (("--seeds", "5,3"), (5, 3)),
        (("--seeds", "5,"), (5,)),
        (("--seeds", "100", "--vmap-seeds", "2"), (100, 101)),  # as it was before
        (("--seeds", "5,3", "--num-seeds", "2"), (5, 3)),
    ],
)
def test_seeds_are_a_number_or_a_list(words: tuple[str, ...], expected: tuple[int, ...]) -> None:
    assert read(*words) == expected


@pytest.mark.parametrize("seeds", [(5,), (5, 3)])
def test_a_list_is_written_as_it_is_read(seeds: tuple[int, ...]) -> None:
    assert read("--seeds", seeds_text(seeds)) == seeds == listed_seeds(seeds_text(seeds))


def test_the_first_seed_is_that_of_who_draws() -> None:
    assert read(rng="jax") == (0, 1, 2) and read("--seeds", "2", rng="jax") == (0, 1)
    assert given_seeds(SeedOptions(seeds="1"), "jax") == (0,)
    assert given_seeds(SeedOptions()) is None


def test_a_first_seed_alone_is_not_dropped_where_the_usual_seeds_are_of_a_file() -> None:
    with pytest.raises(ConfigError, match="--first-seed: nothing says how many seeds follow"):
        given_seeds(SeedOptions(first_seed=7))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--seeds", "0"), "--seeds: got 0, allowed is 1 to 1000000"),
        (("--num-seeds", "0"), "--num-seeds: got 0, allowed is 1 to 1000000"),
        (("--seeds", "many"), "neither a number of seeds nor a list"),
        (("--seeds", "1,2", "--num-seeds", "3"), "lists 2 seeds, but --num-seeds asks for 3"),
        (("--seeds", "1,2", "--first-seed", "3"), "--first-seed: --seeds lists the seeds"),
        (
            ("--seeds", "1", "--num-seeds", "2", "--first-seed", "3"),
            "--num-seeds: --seeds is given",
        ),
        (("--num-seeds", "2", "--vmap-seeds", "2"), "--vmap-seeds: --num-seeds is given too"),
    ],
)
def test_seeds_that_contradict_are_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r"^--") as refused:
        read(*words)
    assert sentence in str(refused.value)


# --- spellings ------------------------------------------------------------------------------------


def parsed(*words: str, flags: tuple[str, ...] = ("output",)) -> dict[str, Any]:
    parser = Parser(prog="python -m test")
    parser.add_flags("all", [Flag(name, str, None, "X", "text") for name in flags])
    parser.add_switches("switches", {"overwrite": "text"})
    return parser.given(words)


def test_an_older_spelling_is_the_option() -> None:
    assert parsed("--out", "a") == {"output": "a"} == parsed("--results-path", "a")
    assert parsed("--fresh") == {"overwrite": True} == parsed("--force")


def test_two_spellings_of_one_option_contradict() -> None:
    with pytest.raises(ConfigError, match="--out: --output is given too, and both are one option"):
        parsed("--output", "a", "--out", "b")
    assert parsed("--output", "a", "--output", "b") == {"output": "b"}


@pytest.mark.parametrize("flags", [("output", "out"), ("out", "output")])
def test_an_option_of_its_own_keeps_its_word(flags: tuple[str, ...]) -> None:
    assert parsed("--out", "a", "--output", "b", flags=flags) == {"out": "a", "output": "b"}
