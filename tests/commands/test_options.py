"""Options as a frozen dataclass: what the parser is made of, and what a command gets."""

from __future__ import annotations

import dataclasses

import pytest

from blis_jax.cluster.config import FIELDS, nearest_setting
from blis_jax.commands.options import CommandOptions, OutputSwitches, option, switch, word, words
from blis_jax.commands.values import whole
from blis_jax.errors import ConfigError
from blis_jax.policies.their_names import NOT_HERE, SETTINGS


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


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--pipeline-parallel-size=2", "step times are those of tensor parallelism"),
        ("--no-enable-chunked-prefill", "prompts are always computed in chunks"),
        ("--speculative-config={}", "drafted tokens are declared in a JSON file"),
        ("--kv-cache-dtype=fp8", "num_gpu_blocks_override says how many"),
        ("--cpu-offload-gb=20", "weights stay on the GPU here"),
        ("--max-num-partial-prefills=2", "max_num_batched_tokens bounds the prompts of a step"),
        ("--mem-fraction-static=0.8", "vLLM's name is used here, gpu_memory_utilization"),
        ("--burstiness=0.5", "a workload file says how requests arrive"),
    ],
)
def test_an_option_of_a_real_server_is_told_what_is_done_in_its_place(
    option: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=f"unknown option .*: {says}"):
        OfArms.read(["a", "b", option])
    name = option.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
    if name != "burstiness":  # of a client, which no arm has
        assert says in nearest_setting(name)


def test_names_of_vllm_in_hints_are_settings() -> None:
    """A hint names only what can be given."""
    hints = [text for text in NOT_HERE.values() if text.startswith("vLLM's name")]
    named = {text.rpartition(", ")[2].partition("=")[0] for text in hints}
    assert named and named <= {*FIELDS, *SETTINGS}
