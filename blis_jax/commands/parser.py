"""The parser of every command: options from declarations, refusals in one sentence."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from blis_jax import progress
from blis_jax.commands import help
from blis_jax.commands.help import spellings
from blis_jax.commands.lacking import elsewhere, refuse_option
from blis_jax.commands.values import OneOf, short, truth
from blis_jax.errors import ConfigError, as_option, closest
from blis_jax.policies import their_names


class Flag(NamedTuple):
    """One option; `default` is BLIS's and only shown: the parser sets none, so a value means that it was given."""

    name: str  # with another spelling after a slash, if there is one
    read: Callable[[str], Any]
    default: Any
    metavar: str
    help: str
    is_repeated: bool = False  # every value is kept


# --- how the user called --------------------------------------------------------------------------

_called: dict[str, str] = {}  # the words that the user typed, by the module of the command


def as_called(module: str) -> str:
    """Return the command as typed after `blis-jax`; if it was called in another way, its module's name."""
    return _called.get(module, module)


@contextlib.contextmanager
def called_as(module: str, words: str) -> Iterator[None]:
    """Begin usage lines and errors of a module's command with `words` while the block lasts."""
    before = dict(_called)
    _called[module] = words
    try:
        yield
    finally:
        _called.clear()
        _called.update(before)


_typed_as: dict[str, str] = {}  # by the option's first spelling, the one that the user typed


def as_typed(message: str) -> str:
    """Replace the option at the start of a message by the spelling that the user typed."""
    return re.sub(r"^--[a-z-]+", lambda option: _typed_as.get(option[0], option[0]), message)


class Declared(BaseException):
    """Raised in place of parsing, to hand out a command's parser; see `declared`."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


_asks_for_declarations: list[bool] = []


def declared(command: Callable[[Sequence[str]], int], words: Sequence[str] = ()) -> Parser:
    """Return a command's parser, without running the command."""
    _asks_for_declarations.append(True)
    try:
        command(words)
    except Declared as declaration:
        return declaration.parser
    finally:
        _asks_for_declarations.pop()
    raise AssertionError("a command reads its options before it does anything else")


# --- the parser -----------------------------------------------------------------------------------


NEAR_OPTION = 0.75  # how alike an option must be to be proposed in place of an unknown one


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError, and whose result holds only the options that were given."""

    def __init__(self, *, add_help: bool = True, **settings: Any) -> None:
        module = settings["prog"].removeprefix("python -m ").split(" ")[0]
        if as_called(module) != module:
            settings["prog"] = settings["prog"].replace(f"python -m {module}", as_called(module))
        super().__init__(
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            formatter_class=help.HelpFormatter,
            add_help=False,
            **settings,
        )
        self.flags: list[Flag] = []
        self.switches: dict[str, str] = {}
        self.spelled: dict[str, str] = {}
        self.typed: set[str] = set()  # words before any =
        self.refused: dict[str, str] = {}
        self.droppable: set[str] = set()
        self.words_also: dict[str, argparse.Action] = {}  # by option, the words that it stands for
        self.seldom: set[str] = set()  # options that only --help-all shows
        for words in (("-h", "--help"), (help.FULL,)) if add_help else ():
            text = "show this help and exit" if len(words) == 2 else "show all options and exit"
            self.add_argument(*words, action=_Help, nargs=0, dest="help", help=text)

    def format_help(self) -> str:
        """Return the help with all options."""
        return help.written(self)

    def add_flags(self, title: str, flags: Sequence[Flag]) -> argparse._ArgumentGroup:
        """Add options to the group with this title, which is created if needed; return the group."""
        group = self._titled(title)
        for flag in flags:
            self.flags.append(flag)
            is_switch = flag.read is truth
            self._add(
                group,
                flag.name,
                action=_KeepAll if flag.is_repeated else _KeepOne,
                type=flag.read,
                metavar=flag.metavar,
                help=help.text_of(flag.help, flag.default),
                nargs="?" if is_switch else None,
                const=True if is_switch else None,
            )
        return group

    def add_switches(self, title: str, switches: Mapping[str, str]) -> None:
        """Add options without a value to the group with this title; `switches` maps names to help texts."""
        group = self._titled(title)
        self.switches |= switches
        for name, text in switches.items():
            self._add(group, name, action="store_true", help=text)

    def _titled(self, title: str) -> argparse._ArgumentGroup:
        """Return the group with this title; create it on the first call."""
        made = (group for group in self._action_groups if group.title == title)
        return next(made, None) or self.add_argument_group(title)

    def _add(self, group: argparse._ArgumentGroup, name: str, **settings: Any) -> None:
        """Add an option with its older spellings, except those that name another option of this parser."""
        declared = name.split("/")
        for word in declared:
            self._give_up(f"--{word}")
        actions = self._option_string_actions
        older = [word for word in spellings(name) if word not in declared]
        words = [*declared, *(word for word in older if f"--{word}" not in actions)]
        group.add_argument(*(f"--{word}" for word in words), **settings)
        if words[0] in help.SELDOM:
            self.hide(words[:1])

    def _give_up(self, word: str) -> None:
        """Remove a word from the spellings of another option, unless it is that option's first spelling."""
        other = self._option_string_actions.get(word)
        if other is not None and word != other.option_strings[0]:
            other.option_strings = [text for text in other.option_strings if text != word]
            del self._option_string_actions[word]

    def hide(self, names: Collection[str]) -> None:
        """Show options under --help-all only, except those that the usage line names."""
        usage = (self.usage or "").split()
        self.seldom |= {f"--{name}" for name in names if f"--{name}" not in usage}

    def take_words_as_option(self, name: str, metavars: Collection[str]) -> None:
        """Accept a positional argument with one of these metavars after `--name`, too, unless that option exists."""
        kinds = [action for action in self._get_positional_actions() if action.metavar in metavars]
        if kinds and f"--{name}" not in self._option_string_actions:
            self.words_also[f"given_as_{name}"] = kinds[0]
            self.add_argument(
                f"--{name}", action=_KeepAll, dest=f"given_as_{name}", help=argparse.SUPPRESS
            )

    def _with_words(self, values: dict[str, Any]) -> dict[str, Any]:
        """Move words given as an option to the positional argument that they belong to."""
        for dest, kind in self.words_also.items():
            first, more = values.get(kind.dest) or [], values.pop(dest, [])
            words = [*([first] if isinstance(first, str) else first), *more]
            if kind.nargs == "?" and len(words) > 1:
                raise ConfigError(f"{kind.metavar}: {len(words)} are given; give one")
            if more:
                values[kind.dest] = words[0] if kind.nargs == "?" else words
        return values

    def refuse(self, flags: Mapping[str, str]) -> None:
        """Declare options of other commands that are refused with a sentence."""
        for name, sentence in flags.items():
            self.refused[name.replace("-", "_")] = sentence
            self.add_argument(f"--{name}", nargs="?", const="", help=argparse.SUPPRESS)

    def drop_empty(self, but: Collection[str]) -> None:
        """Treat text options declared so far as not given if their value is '', as BLIS does; not the options `but`."""
        self.droppable = {
            f"--{name}"
            for flag in self.flags
            if (flag.read is str or isinstance(flag.read, OneOf)) and flag.name not in but
            for name in flag.name.split("/")
        }

    def _kept(self, words: Sequence[str]) -> list[str]:
        """Return the words without the options whose empty value means that they are not given."""
        kept: list[str] = []
        for word in words:
            if word == "" and kept and kept[-1] in self.droppable:
                kept.pop()
            elif not (word.endswith("=") and word[:-1] in self.droppable):
                kept.append(word)
        return kept

    def given(self, arguments: Sequence[str] | None) -> dict[str, Any]:
        """Return the options that were given, by name with underscores.

        Raises:
            ConfigError: an option is unknown or refused, or is no UTF-8 text.
        """
        if _asks_for_declarations:
            raise Declared(self)
        self.spelled.clear()
        words = sys.argv[1:] if arguments is None else arguments
        for word in words:
            if any(0xD800 <= ord(letter) <= 0xDFFF for letter in word):
                raise ConfigError(
                    f"{short(word)} is not UTF-8 text; use names of valid Unicode, and set PYTHONUTF8=1 "
                    "where the locale has none"
                )
        self.typed = {word.partition("=")[0] for word in words}
        namespace, unknown = self.parse_known_args(self._kept(words))
        _typed_as.clear()
        named = [action for action in self._actions if action.dest in self.spelled]
        _typed_as.update({one.option_strings[0]: self.spelled[one.dest] for one in named})
        if unknown:
            raise ConfigError(self._unknown(unknown[0]))
        values = self._with_words(vars(namespace))
        if values.get("quiet"):
            progress.silence()
        for name, sentence in self.refused.items():
            if name in values:
                raise ConfigError(f"{as_option(name)} is refused: {sentence}")
        return values

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a ConfigError, without the usage line."""
        message = re.sub(r"^argument (-\S+): ", self._as_typed, message)
        if message.endswith("expected one argument"):
            message = message.replace("expected one argument", "a value must follow")
            message += "; write NAME=VALUE if it begins with a minus".replace(
                "NAME", message.split(":")[0]
            )
        elif message.endswith("expected at least one argument"):
            message = message.replace("expected at least one argument", "a value must follow")
        raise ConfigError(message)

    def _as_typed(self, named: re.Match[str]) -> str:
        """Return the spelling that the user typed, among the spellings in argparse's message."""
        spelt = named[1].split("/")
        return f"{next((name for name in spelt if name in self.typed), spelt[0])}: "

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{short(word)} is not an option; options begin with --, see --help"
        name = word.split("=")[0]
        refuse_option(name.removeprefix("--"), self.prog)
        known = [text for action in self._actions for text in action.option_strings]
        if name in known:  # argparse leaves a value behind that a switch does not take
            return f"{short(word)}: this option takes no value"
        if instead := elsewhere(name.removeprefix("--"), self.prog):
            return f"unknown option {short(name)}: {instead}"
        if setting := self._setting_of_arm(name):
            return f"unknown option {short(name)}: a setting belongs to {setting}"
        return f"unknown option {short(name)}{closest(name, known, NEAR_OPTION) or '; see --help'}"

    def _setting_of_arm(self, option: str) -> str | None:
        """Return how to give an option as the setting of an arm or strategy; None if it is no such setting."""
        metavars = {str(action.metavar) for action in self._actions} & {"ARM", "STRATEGY"}
        name = option.removeprefix("--").replace("-", "_")
        config = import_module("blis_jax.cluster.config")
        if not metavars or name not in {*config.FIELDS, *their_names.SETTINGS}:
            return None
        word = min(metavars)
        kind = "an arm" if word == "ARM" else "a strategy"
        return f"{kind} here; write {word}:{name}=VALUE"


class _Help(argparse.Action):
    """Prints the help and ends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, Parser)
        print(help.written(parser, () if option_string == help.FULL else parser.seldom), end="")
        parser.exit()


class _KeepOne(argparse.Action):
    """Keeps the last value, as argparse does, but refuses two different spellings of one option."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, Parser) and option_string is not None
        first = parser.spelled.setdefault(self.dest, option_string)
        if first != option_string:
            raise ConfigError(
                f"{option_string}: {first} is given too, and both are one option; give one of them"
            )
        setattr(namespace, self.dest, values)


class _KeepAll(argparse.Action):
    """Keeps all values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, ()), values])


def is_kept_whole(option: argparse.Action) -> bool:
    """Return whether an option may be repeated and keeps all its values."""
    return isinstance(option, _KeepAll)
