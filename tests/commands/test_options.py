"""Options as a frozen dataclass: what the parser is made of, and what a command gets."""

from __future__ import annotations

import dataclasses

import pytest

from blis_jax.commands.options import CommandOptions, OutputSwitches, option, switch, word, words
from blis_jax.commands.values import whole
from blis_jax.errors import ConfigError


class Sizes(CommandOptions, title="sizes"):
    points: int = option(whole, 16, "N", "how many points")
    limit: int | None = option(whole, None, "N", "how many rows", also="most", shown=5)
    metric: tuple[str, ...] = option(str, (), "NAME", "repeat it", is_repeated=True)


class Command(Sizes, OutputSwitches, title="output", command="test", description="A test."):
    files: tuple[str, ...] = words("FILE", "what is read")
    place: str | None = option(str, None, "PATH", "where it goes")
    points: int = option(whole, 8, "N", "how many points here")


class Pair(CommandOptions, command="pair"):
    first: str | None = word("ARM", "the first")
    is_late: bool = switch("come late")


def test_a_field_has_what_was_given_or_its_default() -> None:
    options = Command.read(["a", "b", "--most", "3", "--metric", "x", "--metric", "y", "--quiet"])
    assert options == Command(files=("a", "b"), limit=3, metric=("x", "y"), quiet=True)
    assert (options.points, options.place, options.resume) == (8, None, False)
    assert Command.read([]).limit is None  # the help alone shows 5
    assert Pair.read(["arm", "--is-late"]) == Pair(first="arm", is_late=True)


def test_options_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Command.read([]).points = 3  # type: ignore[misc]


def test_given_has_what_is_not_the_default() -> None:
    assert Command.read(["--limit", "5", "--points", "8"]).given() == {"limit": 5}
    assert Command.of({"limit": 5, "unknown": 1}).given() == {"limit": 5}


def test_help_has_groups_in_the_order_of_classes_and_what_is_declared_anew_in_its_place() -> None:
    text = Command.parser().format_help()
    places = [text.index(part) for part in ("\noutput:", "\nsizes:", "\nswitches:")]
    assert places == sorted(places)
    assert text.index("\nsizes:") < text.index("how many points here (default: 8)")
    assert "how many rows (default: 5)" in text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--pionts", "3"], "unknown option '--pionts'; did you mean '--points'"),
        (["--corrected", "true"], "unknown option '--corrected'; see --help"),  # nothing like it
        (["--points", "many"], "--points: 'many' is not a whole number"),
        (["--points"], "--points: a value must follow"),
        (["--limit", "1", "--most", "2"], "--most: --limit is given too, and both are one option"),
        (["--quiet=yes"], "takes no value|ignored explicit argument"),
    ],
)
def test_what_is_wrong_is_said(given: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Command.read(given)


class OfArms(CommandOptions, command="of_arms"):
    """A command that takes arms."""

    arms: tuple[str, ...] = words("ARM", "two or more")


@pytest.mark.parametrize("setting", ["corrected", "max_num_seqs", "kv_cpu_blocks"])
def test_a_setting_given_as_an_option_belongs_to_an_arm(setting: str) -> None:
    sentence = f"a setting belongs to an arm here; write ARM:{setting}=VALUE"
    with pytest.raises(ConfigError, match=sentence):
        OfArms.read(["a", "b", f"--{setting.replace('_', '-')}", "1"])
