"""Arms, traces, workloads and settings are given in one way in all commands, or refused with what to do instead."""

from __future__ import annotations

import pytest

from blis_jax.commands.door.catalogue import parsers
from blis_jax.errors import ConfigError

# What a command takes under an option's name; the others are refused with what to do instead.
TAKES = {
    "run": "trace workload rate num-requests model gpu tp num-instances instances coefficients-from",
    "compare": "trace workload strategy rate num-requests seeds instances targets coefficients-from",
    "sweep": "trace workload strategy rate num-requests seeds instances set grid targets coefficients-from",
    "ablate": "trace workload strategy rate num-requests seeds instances targets coefficients-from",
    "select": "workload strategy rate num-requests seeds instances targets coefficients-from",
    "capacity": "trace workload strategy rate num-requests seeds model tp grid targets coefficients-from",
    "curve": "workload strategy rate num-requests seeds grid coefficients-from",
    "recommend": "trace workload strategy rate num-requests seeds tp grid targets",
    "robustness": "trace workload strategy rate num-requests seeds num-instances targets",
    "sensitivity": "trace workload strategy rate num-requests seeds",
    "dataset": "workload strategy rate num-requests seeds",
    "optimize": "trace workload strategy rate num-requests seeds instances",
    "gradient": "trace workload strategy rate num-requests seeds instances coefficients-from",
}  # fmt: skip
OTHERS = {  # one name that is another thing there
    ("sensitivity", "model"),  # which models are studied: simulator, surrogate
    ("robustness", "instances"),  # the axis of numbers of instances
}
ASKED = {name for taken in TAKES.values() for name in taken.split()}
PARSERS = parsers()


@pytest.mark.parametrize("command", TAKES)
def test_the_table_says_what_a_command_takes(command: str) -> None:
    known = PARSERS[command]._option_string_actions
    taken = {name for name in ASKED if f"--{name}" in known and (command, name) not in OTHERS}
    assert taken == set(TAKES[command].split())


@pytest.mark.parametrize("command", TAKES)
def test_what_is_not_taken_ends_in_a_sentence_that_says_what_to_do(command: str) -> None:
    for name in ASKED - set(TAKES[command].split()):
        if (command, name) not in OTHERS:
            with pytest.raises(ConfigError, match=f"unknown option '--{name}': .+") as refused:
                PARSERS[command].given([f"--{name}", "X"])
            assert "--help" not in str(refused.value).replace("--help-all", "")


@pytest.mark.parametrize("command", [name for name in TAKES if name != "run"])
def test_strategies_may_be_words_or_an_option(command: str) -> None:
    parser = PARSERS[command]
    given = parser.given(["--strategy", "vllm"])
    taken = [value for value in given.values() if value in ("vllm", ["vllm"])]
    assert len(taken) == 1
    if any(word.metavar in ("ARM", "STRATEGY") for word in parser._get_positional_actions()):
        both = parser.given(["vllm"])
        assert [value for value in both.values() if value in ("vllm", ["vllm"])] == taken
