"""What the commands declare: their parsers, and the words that an option's value may be."""

from __future__ import annotations

import argparse
from importlib import import_module

from blis_jax.commands.door.catalogue import COMMANDS, WITH_ACTIONS, actions_of
from blis_jax.commands.parser import Parser, called_as, declared

NEEDS_ACTION = ("ledger",)  # commands that do nothing without one


def parsers() -> dict[str, Parser]:
    """The parser of every command, by the words behind `blis-jax`; nothing is run."""
    found = {}
    for name, command in COMMANDS.items():
        actions = actions_of(name) if name in WITH_ACTIONS else ()
        words_alone = ("",) if name not in NEEDS_ACTION else ()
        with called_as(command.module, f"blis-jax {name}"):
            for action in (*words_alone, *actions):
                words = [action] if action else []
                found[f"{name} {action}".strip()] = declared(command.main(), words)
    return found


def options_of(parser: Parser) -> list[argparse.Action]:
    """The options that help shows, in its order."""
    return [one for one in parser._actions if one.option_strings and one.help != argparse.SUPPRESS]


def takes_value(option: argparse.Action) -> bool:
    """Whether a value follows the option."""
    return option.nargs != 0


def words_for(action: argparse.Action, command: str) -> tuple[str, ...]:
    """The words that may follow an option, or stand in a position; none if anything may."""
    choices = getattr(action.type, "choices", None) or action.choices
    if choices:
        return tuple(map(str, choices))
    if action.dest in ("workload", "workload_spec"):
        return tuple(import_module("blis_jax.workload.spec").list_builtin())
    if action.dest == "model":
        return tuple(import_module("blis_jax.latency.coefficients").known_models())
    if action.dest in ("strategy", "arm", "arms", "candidates", "baseline", "against", "criteria"):
        if command == "sweep":
            return tuple(import_module("blis_jax.commands.sweep.strategies").list_builtin())
        return tuple(import_module("sweeps.strategies.arms").list_names())
    return ()
