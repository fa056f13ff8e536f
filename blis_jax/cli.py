"""What the commands share: options, one-sentence errors, files written whole.

Nothing here imports JAX before it is needed, so that help and refusals come at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from blis_jax.atomic_write import clear_leftovers
from blis_jax.errors import ConfigError, ConfigWarning, UnsupportedError, closest
from blis_jax.input_files import check_regular, refuse_half_characters

EXIT_BAD_INPUT = 2
EXIT_UNSUPPORTED = 3  # the input is right for BLIS, but cannot be simulated here (yet)
EXIT_INTERRUPTED = 130

LONGEST_WORD = 500  # characters that one word of a message may have; paths are long

LOG_LEVELS = ("trace", "debug", "info", "warn", "error", "fatal", "panic")


class Flag(NamedTuple):
    """One option; the default is the reference's and only shown, so that given ones can be told."""

    name: str  # with another spelling after a slash, if there is one
    read: Callable[[str], Any]
    default: Any
    metavar: str
    help: str


# --- values ---------------------------------------------------------------------------------------


def whole(text: str) -> int:
    """A whole number of at most 64 bits."""
    value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None
    if value is None or not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{_short(text)} is not a whole number of at most 64 bits")
    return value


def number(text: str) -> float:
    """A number; whether it may be infinite or negative is checked with the rest."""
    try:
        return float(text.replace("_", "?"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_short(text)} is not a number") from None


def at_least(least: int, read: Callable[[str], Any] = whole) -> Callable[[str], Any]:
    """A number that is not below a limit."""

    def bounded(text: str) -> Any:
        value = read(text)
        if value < least:
            raise argparse.ArgumentTypeError(
                f"got {_short(text)[1:-1]}, allowed is {least} or more"
            )
        return value

    return bounded


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    return tuple(number(part.strip()) for part in text.split(","))


def truth(text: str) -> bool:
    """The reference's spellings of true and false."""
    if text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{_short(text)} is neither true nor false")
    return _TRUTHS[text.lower()]


_TRUTHS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def one_of(*choices: str) -> Callable[[str], str]:
    """One of a few words."""

    def read(text: str) -> str:
        if text not in choices:
            allowed = ", ".join(choices)
            raise argparse.ArgumentTypeError(
                f"{_short(text)} is not known; use one of {allowed}{closest(text, choices)}"
            )
        return text

    return read


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


# --- the parser -----------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError and sets only what was given."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
            **settings,
        )
        self.refused: dict[str, str] = {}
        self.unsupported: set[str] = set()

    def add_flags(self, title: str, flags: Sequence[Flag]) -> argparse._ArgumentGroup:
        """A titled group of options, which can take more."""
        group = self.add_argument_group(title)
        for flag in flags:
            text = flag.help.replace("%", "%%")
            if flag.default not in (None, "", ()):
                text += f" (default: {_shown(flag.default)})"
            is_switch = flag.read is truth
            group.add_argument(
                *(f"--{name}" for name in flag.name.split("/")),
                type=flag.read,
                metavar=flag.metavar,
                help=text,
                nargs="?" if is_switch else None,
                const=True if is_switch else None,
            )
        return group

    def add_switches(self, title: str, switches: Mapping[str, str]) -> None:
        """A titled group of options without a value, from names to helps."""
        group = self.add_argument_group(title)
        for name, text in switches.items():
            group.add_argument(f"--{name}", action="store_true", help=text)

    def refuse(self, flags: Mapping[str, str], unsupported: Collection[str] = ()) -> None:
        """Options of the reference that end in a sentence; some ask for a mechanism that is not here."""
        self.unsupported = {name.replace("-", "_") for name in unsupported}
        for name, sentence in flags.items():
            self.refused[name.replace("-", "_")] = sentence
            self.add_argument(f"--{name}", nargs="?", const="", help=argparse.SUPPRESS)

    def given(self, arguments: Sequence[str] | None) -> dict[str, Any]:
        """The options that were given, by name with underscores."""
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            raise ConfigError(self._unknown(unknown[0]))
        values = vars(namespace)
        for name, sentence in self.refused.items():
            if name in values:
                written = f"--{name.replace('_', '-')}"
                kind = UnsupportedError if name in self.unsupported else ConfigError
                raise kind(f"{written} is refused: {sentence}")
        return values

    def error(self, message: str) -> NoReturn:
        """Say it in one sentence, without the usage."""
        message = re.sub(r"^argument (-\S+?)(/-\S+)*: ", r"\1: ", message)
        if message.endswith("expected one argument"):
            message = message.replace("expected one argument", "a value must follow")
            message += "; write NAME=VALUE if it begins with a minus".replace(
                "NAME", message.split(":")[0]
            )
        elif message.endswith("expected at least one argument"):
            message = message.replace("expected at least one argument", "a value must follow")
        raise ConfigError(message)

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{_short(word)} is not an option; options begin with --, see --help"
        name = word.split("=")[0]
        known = [text for action in self._actions for text in action.option_strings]
        if name in known:  # argparse leaves a value behind that a switch does not take
            return f"{_short(word)}: this option takes no value"
        return f"unknown option {_short(name)}{closest(name, known) or '; see --help'}"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- commands -------------------------------------------------------------------------------------


def run_command(
    name: str, command: Callable[[Sequence[str] | None], int], arguments: Sequence[str] | None
) -> int:
    """Run a command; what the user can put right ends in one sentence on stderr and a code."""
    try:
        with _warnings_said(name):
            return command(arguments)
    except ConfigError as error:
        say(name, f"error: {error}")
        return EXIT_UNSUPPORTED if isinstance(error, UnsupportedError) else EXIT_BAD_INPUT
    except KeyboardInterrupt:
        say(name, "interrupted; files already written are whole")
        return EXIT_INTERRUPTED
    except MemoryError:
        say(name, "error: out of memory; simulate fewer requests or fewer instances")
        return EXIT_BAD_INPUT
    except UnicodeEncodeError as error:
        shown = ascii(error.object[max(error.start - 20, 0) : error.end + 20])
        say(name, f"error: {shown} cannot be written as UTF-8; give names of whole characters")
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        # the reader of stdout left; keep Python from complaining again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(name, f"error: {where}{error.strerror or error}")
        return EXIT_BAD_INPUT


@contextlib.contextmanager
def _warnings_said(name: str) -> Iterator[None]:
    """Say warnings about the input as remarks; others are shown as usual."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", ConfigWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            if issubclass(category, ConfigWarning):
                say(name, f"note: {message}")
            else:
                usual(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def silence_warnings(log_level: str) -> None:
    """Inside a command, leave warnings out if --log asks for more serious messages only."""
    if LOG_LEVELS.index(log_level) > LOG_LEVELS.index("warn"):
        warnings.simplefilter("ignore", ConfigWarning)


def command_text(name: str, words: Sequence[str]) -> str:
    """The command line to type for the same result, to be kept with it."""
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    return f"python -m {name} {shlex.join(kept)}".strip()


def say(name: str, message: str) -> None:
    """One line on stderr."""
    words = (word if len(word) <= LONGEST_WORD else f"{word[:57]}..." for word in message.split())
    print(f"{name}: {' '.join(words)}", file=sys.stderr, flush=True)


class Notes:
    """Remarks on stderr, as talkative as the reference's --log asks for."""

    def __init__(self, name: str, level: str = "warn") -> None:
        self.name = name
        self.level = LOG_LEVELS.index(level)

    def info(self, message: str) -> None:
        """What the command is doing."""
        if self.level <= LOG_LEVELS.index("info"):
            say(self.name, message)

    def warn(self, message: str) -> None:
        """What the user may not expect."""
        if self.level <= LOG_LEVELS.index("warn"):
            say(self.name, f"note: {message}")

    def block(self, lines: Sequence[str]) -> None:
        """Several lines that belong together, the first as a note."""
        if lines and self.level <= LOG_LEVELS.index("warn"):
            rest = "".join(f"\n{line}" for line in lines[1:])
            print(f"{self.name}: note: {lines[0]}{rest}", file=sys.stderr, flush=True)


class Progress:
    """One line on stderr that is overwritten; silent where stderr is not a terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.is_shown = total > 1 and sys.stderr.isatty()

    def show(self, done: int, what: str) -> None:
        """How far the command is."""
        if self.is_shown:
            print(f"\r\x1b[K[{done}/{self.total}] {what}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line, before something else is printed."""
        if self.is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# --- files ----------------------------------------------------------------------------------------


def check_writable(path: Path, *, is_folder: bool = False) -> None:
    """Refuse, before anything is computed, an output path that cannot be written.

    What a killed command left behind when it wrote there is removed, or put in its place.
    """
    if path.is_dir() and not is_folder:
        raise ConfigError(f"{path} is a folder; give the name of a file to write")
    if is_folder and path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is not a folder; give a folder for the results")
    folder = path if is_folder else path.parent
    while is_folder and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"{path} cannot be written: the folder {folder} {what}")
    with writing(path), tempfile.TemporaryFile(dir=folder):
        clear_leftovers(path)


def figure_path(given: Mapping[str, Any], result: Path) -> Path | None:
    """`--figure`, a .png, none, or beside the result."""
    text = given.get("figure", str(result.with_suffix(".png")))
    figure = None if text == "none" else Path(text)
    if figure is not None and figure.suffix != ".png":
        raise ConfigError(f"--figure: {text!r} must end in .png, or be none")
    return figure


def result_paths(given: Mapping[str, Any], default: str | Path) -> tuple[Path, Path | None]:
    """`--output`, a .json, and `--figure`, a .png or none; both checked before anything is computed."""
    result = Path(given.get("output", default))
    if result.suffix != ".json":
        raise ConfigError(f"--output: {str(result)!r} must end in .json")
    figure = figure_path(given, result)
    if "output" not in given:
        with writing(result):
            result.parent.mkdir(parents=True, exist_ok=True)
    for path in (result, figure):
        if path is not None:
            check_writable(path)
    return result, figure


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be written ({reason}); choose another place") from None


def read_text(path: Path, what: str) -> str:
    """A UTF-8 text file; `what` it should be is said if it cannot be read."""
    try:
        return check_regular(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the path of {what}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a UTF-8 text; give the path of {what}") from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read ({reason}); give the path of {what}") from None


def read_json(path: Path, what: str) -> Any:
    """The JSON document in a text file; `what` it should be is said if it is none."""
    text = read_text(path, what)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); give {what}") from None
    refuse_half_characters(text, document, str(path))
    return document
