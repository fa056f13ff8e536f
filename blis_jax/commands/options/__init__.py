"""Options of a command as a frozen dataclass: each is declared once, as a field, and the parser is made from it.

Groups that several commands share (seeds, a trace, output) are classes of their own, from which a command's class
inherits. A field is None, False or () where its option was not given and has no default.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    dataclass_transform,
)

from blis_jax import lazy
from blis_jax.commands.cli import command_text, run_command
from blis_jax.commands.help import BY_NAME
from blis_jax.commands.parser import Flag, Parser

if TYPE_CHECKING:
    from blis_jax.runs import scheduler
else:  # it loads JAX
    scheduler = lazy.Module("blis_jax.runs.scheduler")

O = TypeVar("O", bound="CommandOptions")  # noqa: E741


class CommandMain(Protocol):
    """The `main` of a command's module."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command with `arguments`, or with `sys.argv[1:]` if None; return its exit code."""


class _Switch(NamedTuple):
    """An option without a value."""

    help: str


class _Word(NamedTuple):
    """A positional argument, or all of them."""

    metavar: str
    help: str
    are_many: bool
    read: Callable[[str], Any] = str


def option(
    read: Callable[[str], Any],
    default: Any,
    metavar: str,
    help: str,
    *,
    also: str = "",
    shown: Any = None,
    is_repeated: bool = False,
) -> Any:
    """Declare an option with a value.

    Args:
        read: function from an option's text to its value.
        default: the field's value where the option is not given; the help shows it.
        metavar: the value's placeholder in the help.
        help: what the option does.
        also: further spellings, with slashes between them.
        shown: the default that the help shows for an option whose field is None if it is not given.
        is_repeated: whether the option may be repeated; its field is a tuple of all values.
    """
    flag = Flag(also, read, default if shown is None else shown, metavar, help, is_repeated)
    return dataclasses.field(
        default=() if is_repeated else default, metadata={"declared": flag}, kw_only=True
    )


def switch(help: str = "") -> Any:
    """Declare an option without a value; an option listed in `help.SHARED` needs no `help`."""
    return dataclasses.field(default=False, metadata={"declared": _Switch(help)}, kw_only=True)


def word(metavar: str, help: str, read: Callable[[str], Any] = str) -> Any:
    """Declare a single positional argument."""
    declared = _Word(metavar, help, False, read)
    return dataclasses.field(default=None, metadata={"declared": declared}, kw_only=True)


def words(metavar: str, help: str) -> Any:
    """Declare all positional arguments; the field is a tuple."""
    declared = _Word(metavar, help, are_many=True)
    return dataclasses.field(default=(), metadata={"declared": declared}, kw_only=True)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, switch, word, words)
)
class CommandOptions:
    """Base of all options; `title` heads a group in the help, `command` is what `python -m` takes."""

    title: ClassVar[str] = ""
    command: ClassVar[str] = ""
    description: ClassVar[str] = ""
    examples: ClassVar[str] = ""
    usage: ClassVar[str | None] = None
    said: ClassVar[Sequence[str]] = ()  # the words that an instance was read from

    def __init_subclass__(
        cls,
        title: str = "",
        command: str = "",
        description: str = "",
        examples: str = "",
        usage: str | None = None,
    ) -> None:
        """Make the class a frozen dataclass; set the title of its group, or the texts of its command."""
        cls.title, cls.command = title, command
        cls.description, cls.examples, cls.usage = description, examples, usage
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def called(cls, command: str, description: str, examples: str) -> type[Self]:
        """Return a subclass with the same options, for a command whose name is known only when it is called."""
        words = {"command": command, "description": description, "examples": examples}
        kind: type[Self] = types.new_class(cls.__name__, (cls,), words)
        return kind

    @classmethod
    def parser(cls) -> Parser:
        """Return the command's parser."""
        made = Parser(
            prog=f"python -m {cls.command}",
            usage=cls.usage,
            description=cls.description,
            epilog=cls.examples or None,
        )
        cls.add_to(made)
        return made

    @classmethod
    def add_to(cls, parser: Parser) -> None:
        """Add the options to a parser, in their groups."""
        for group, field in _placed(cls):
            declared, name = field.metadata["declared"], _option_name(field)
            if isinstance(declared, _Word):
                many = "*" if declared.are_many else "?"
                parser.add_argument(
                    field.name,
                    type=declared.read,
                    metavar=declared.metavar,
                    nargs=many,
                    default=None,
                    help=declared.help,
                )
            elif isinstance(declared, _Switch):
                parser.add_switches(group, {name: declared.help or BY_NAME[name].meaning})
            else:
                parser.add_flags(group, [_named(declared, name)])
        parser.take_words_as_option("strategy", ("ARM", "STRATEGY"))

    @classmethod
    def read(cls, arguments: Sequence[str] | None) -> Self:
        """Parse `arguments`, or `sys.argv[1:]` if None; return the options.

        Raises:
            ConfigError: an option is unknown, is given in two ways, or has no such value.
        """
        said = sys.argv[1:] if arguments is None else arguments
        options = cls.of(cls.parser().given(said))
        object.__setattr__(options, "said", tuple(said))
        return options

    @classmethod
    def as_main(cls, body: Callable[[Self], int]) -> CommandMain:
        """Turn `body`, a function of the options, into a command that parses arguments and returns an exit code."""

        @functools.wraps(body)
        def command(arguments: Sequence[str] | None = None) -> int:
            return run_command(cls.command, lambda words: done(body, cls.read(words)), arguments)

        return command

    def line(self) -> str:
        """Return the command line that reproduces the result, to be saved with it."""
        return command_text(self.command, self.said)

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> Self:
        """Return options with the values in `named`; None and names of other options are ignored."""
        values = {
            field.name: tuple(value) if isinstance(value, list) else value
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if (value := named.get(field.name.rstrip("_"))) is not None
        }
        return cls(**values)

    def given(self) -> dict[str, Any]:
        """Return the options whose values differ from their defaults, by name."""
        return {
            field.name: value
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) != field.default
        }


class MeasuredOptions(CommandOptions, title="what is measured"):
    """Targets, and which arrivals count."""

    targets: tuple[str, ...] = option(
        str, (), "CLASS.LIMIT=MS",
        "SLO target, such as critical.ttft_ms=80, LIMIT being ttft_ms, tpot_ms or e2e_ms; MS may be none; "
        "repeat it (default: TTFT 100 ms for critical, 250 for standard, 1000 for sheddable)", is_repeated=True,
    )  # fmt: skip
    window: str | None = option(
        str, None, "WARM,COOL",
        "seconds of arrivals at the start and at the end that are simulated but not measured (default: the "
        "workload's `measure`)",
    )  # fmt: skip


class FigureOption(CommandOptions, title="output"):
    """A picture of the result."""

    figure: str | None = option(
        str, None, "PATH", "PNG to write, or none (default: beside the result)"
    )


class OverwriteSwitch(CommandOptions, title="switches"):
    """The switch that replaces existing results."""

    overwrite: bool = switch("replace existing output files")


class PlainSwitches(OverwriteSwitch, title="switches"):
    """Switches that replace existing results, print nothing, or compile again."""

    quiet: bool = switch()
    no_cache: bool = switch()


class AllSwitch(CommandOptions, title="switches"):
    """The switches that print all of the results, or how they were found."""

    all: bool = switch()
    explain: bool = switch()


class SchedulerOption(CommandOptions, title="switches"):
    """The processes that make the runs."""

    scheduler: str | None = option(
        str, None, "WHERE", "local:N processes, or a Dask scheduler's tcp://HOST:PORT or file (default: threads)"
    )  # fmt: skip


class OutputSwitches(PlainSwitches, SchedulerOption, title="switches"):
    """`PlainSwitches` and --scheduler, for a command that can resume where it was stopped."""

    resume: bool = switch()


def done(body: Callable[[O], int], options: O) -> int:
    """Run a command's `body`, with its runs made by the workers that --scheduler names; return the exit code."""
    if not isinstance(options, SchedulerOption) or options.scheduler is None:
        return body(options)
    with scheduler.used(options.scheduler):
        return body(options)


def _option_name(field: dataclasses.Field[Any]) -> str:
    """Return the option's name; the underscore after a field name that would be a Python keyword is dropped."""
    return field.name.rstrip("_").replace("_", "-")


def _named(flag: Flag, name: str) -> Flag:
    return flag._replace(name=f"{name}/{flag.name}" if flag.name else name)


def _placed(kind: type[CommandOptions]) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield each option's group title and field: a class's own before those of its bases.

    An option redeclared in a derived class keeps the place of its first declaration in a base.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for place, base in enumerate(kind.__mro__):
        later = [name for other in kind.__mro__[place + 1 :] for name in _own(other)]
        for name in _own(base):
            if name in fields and name not in later and "declared" in fields[name].metadata:
                yield base.title, fields[name]  # type: ignore[attr-defined]


def _own(base: type) -> Collection[str]:
    """Return the names annotated in the class itself, not in its bases."""
    names: Collection[str] = vars(base).get("__annotations__", {})
    return names
