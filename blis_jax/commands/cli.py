"""What the commands share: one-sentence errors, remarks and progress, files written whole.

Nothing here imports JAX before it is needed, so that help and refusals come at once. Options are in `parser`,
options with one meaning everywhere in `options`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import gc
import io
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from blis_jax import backend, progress
from blis_jax.commands.lacking import advice_on
from blis_jax.commands.parser import as_called, as_typed
from blis_jax.errors import (
    ConfigError,
    ConfigWarning,
    UnsupportedError,
    closest,
    refusing_unwritable,
)
from blis_jax.files.atomic_write import clear_leftovers
from blis_jax.files.python_files import place_of

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of what cannot be written to the end
EXIT_BAD_INPUT = 2
EXIT_UNSUPPORTED = 3  # the input is right for BLIS, but cannot be simulated here (yet)
EXIT_INTERRUPTED = 130

LONGEST_WORD = 500  # characters that one word of a message may have; paths are long

# new ones; 700, which is Python's own, took a tenth of a command's time, 50,000 a twentieth
OBJECTS_A_COLLECTION = 500_000

LOG_LEVELS = ("trace", "debug", "info", "warn", "error", "fatal", "panic")


def run_command(
    name: str, command: Callable[[Sequence[str] | None], int], arguments: Sequence[str] | None
) -> int:
    """Run a command; return its exit code. Errors that a user can correct are printed as one sentence on stderr."""
    if is_called_from_python.get():
        with progress.shown(as_called(name)) if progress.is_watched() else contextlib.nullcontext():
            return command(arguments)
    _open_what_is_closed()
    try:
        _own_the_process()
        with _warnings_said(name), progress.shown(as_called(name)):
            code = command(arguments)
        sys.stdout.flush()  # here a full disk can still be said
        for message in _at_end:
            say("blis-jax", f"note: {message}")
        return code
    except ConfigError as error:
        say(name, f"error: {as_typed(str(error))}")
        return EXIT_UNSUPPORTED if isinstance(error, UnsupportedError) else EXIT_BAD_INPUT
    except KeyboardInterrupt:
        say(name, "interrupted; the files written so far are complete")
        return EXIT_INTERRUPTED
    except MemoryError:
        say(name, "error: out of memory; simulate fewer requests or fewer instances")
        return EXIT_BAD_INPUT
    except ModuleNotFoundError as error:
        advice = advice_on(error.name)
        if advice is None:
            raise
        say(name, f"error: {advice}")
        return EXIT_BAD_INPUT
    except UnicodeEncodeError as error:
        shown = ascii(error.object[max(error.start - 20, 0) : error.end + 20])
        say(name, f"error: {shown} cannot be written as UTF-8; use names of valid Unicode")
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        _drop_output()  # the reader of stdout left
        return 1
    except OSError as error:
        where = error.filename
        if not where and error.errno in FULL:  # whatever writes a file names it
            where = "standard output"
            _drop_output()
        say(name, f"error: {f'{where}: ' if where else ''}{error.strerror or error}")
        return EXIT_BAD_INPUT
    except Exception as error:
        place = place_of(error)
        if place is None:
            raise
        say(name, f"error: {place}: {_said(error)}")
        return EXIT_BAD_INPUT
    finally:
        _at_end.clear()


_at_end: list[str] = []


def note_at_end(message: str) -> None:
    """Print a remark after the command's answer; after an error it is dropped."""
    _at_end.append(message)


is_called_from_python: ContextVar[bool] = ContextVar("is_called_from_python", default=False)


@contextlib.contextmanager
def called_from_python() -> Iterator[None]:
    """Raise errors and warnings as Python's, and leave process-wide settings alone, while the block lasts."""
    before = is_called_from_python.set(True)
    try:
        yield
    finally:
        is_called_from_python.reset(before)


@functools.cache
def _own_the_process() -> None:
    """Change process-wide settings: keep compiled programs, collect garbage seldom, and not at exit."""
    backend.keeps_programs = True
    gc.set_threshold(OBJECTS_A_COLLECTION)
    atexit.register(gc.freeze)


_NOT_KNOWN_YET = {  # JAX's errors on values that a policy's function has only while it runs
    "TracerBoolConversionError": "if, and, or, not and while need a value before the run; use jnp.where, &, | and ~",
    "TracerIntegerConversionError": "an index or a count is needed before the run; use jnp.take or jnp.where",
    "TracerArrayConversionError": "numpy (np) needs values before the run; use jax.numpy (jnp) for the same",
    "ConcretizationTypeError": "a Python number is needed before the run; keep it an array of jnp",
}


def _said(error: Exception) -> str:
    """Return what went wrong in a user's file, in one line."""
    kind = type(error).__name__
    if "truth value of an array" in str(error):  # an example is made of arrays of numpy
        kind = "TracerBoolConversionError"
    if kind in _NOT_KNOWN_YET:
        return _NOT_KNOWN_YET[kind]
    if isinstance(error, AttributeError) and error.name is not None and error.obj is not None:
        known = [name for name in dir(error.obj) if not name.startswith("_")]
        owner = "an array" if hasattr(error.obj, "aval") else type(error.obj).__name__
        if not known:
            return f"the policy has no numbers, and reads {error.name!r}; declare it with number(…) in a class"
        inside = [name for name in known if error.name in _names_in(error.obj, name)]
        near = f"; write {inside[0]}.{error.name}" if inside else closest(error.name, known)
        return f"{owner} has nothing called {error.name!r}{near}"
    return f"{kind}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")


def _names_in(owner: object, name: str) -> Collection[str]:
    """Return the attribute names of an object's attribute; none if it cannot be read, as on a traced array."""
    try:
        return dir(getattr(owner, name))
    except Exception:
        return ()


def _open_what_is_closed() -> None:
    """Open standard streams that the shell closed (`>&-`) on the null device, so that code may read and print."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Keep Python from complaining again when it flushes standard output at exit."""
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _warnings_said(name: str) -> Iterator[None]:
    """Print a ConfigWarning as a remark; show other warnings as usual."""
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
    """Silence a command's warnings and progress if its --log level is above `warn`."""
    if LOG_LEVELS.index(log_level) > LOG_LEVELS.index("warn"):
        progress.silence()
        warnings.simplefilter("ignore", ConfigWarning)


def command_text(name: str, arguments: Sequence[str] | None) -> str:
    """Return the command line that reproduces the result, to be saved with it."""
    words = sys.argv[1:] if arguments is None else arguments
    kept = [word for word in words if word not in ("--resume", "--overwrite")]
    for option in ("--scheduler", "--part"):  # who makes runs changes no byte of what is written
        if option in kept:
            at = kept.index(option)
            kept = kept[:at] + kept[at + 2 :]
        kept = [word for word in kept if not word.startswith(f"{option}=")]
    called = as_called(name)
    return f"{f'python -m {name}' if called == name else called} {shlex.join(kept)}".strip()


def say(name: str, message: str) -> None:
    """Print one line on stderr, after the command's name."""
    progress.make_way()
    words = (word if len(word) <= LONGEST_WORD else f"{word[:57]}..." for word in message.split())
    print(f"{as_called(name)}: {' '.join(words)}", file=sys.stderr, flush=True)


class Notes:
    """Prints remarks on stderr, filtered by the level of BLIS's option --log."""

    def __init__(self, name: str, level: str = "warn") -> None:
        self.name = name
        self.level = LOG_LEVELS.index(level)

    def info(self, message: str) -> None:
        """Print what the command is doing, at log level `info` and below."""
        if self.level <= LOG_LEVELS.index("info"):
            say(self.name, message)

    def say(self, message: str) -> None:
        """Print what is simulated, at the default log level `warn` and below."""
        if self.level <= LOG_LEVELS.index("warn"):
            say(self.name, message)

    def warn(self, message: str) -> None:
        """Print a note on something unexpected, at log level `warn` and below."""
        if self.level <= LOG_LEVELS.index("warn"):
            say(self.name, f"note: {message}")

    def block(self, lines: Sequence[str]) -> None:
        """Print several lines that belong together, the first as a note."""
        if lines and self.level <= LOG_LEVELS.index("warn"):
            progress.make_way()
            rest = "".join(f"\n{line}" for line in lines[1:])
            print(f"{as_called(self.name)}: note: {lines[0]}{rest}", file=sys.stderr, flush=True)


# --- files ----------------------------------------------------------------------------------------


def check_writable(path: Path, *, is_folder: bool = False) -> None:
    """Make the folder of an output path; refuse a path that cannot be written, before anything is computed.

    Partial files that a killed command left there are removed, or moved into place if complete.
    """
    if path.is_dir() and not is_folder:
        raise ConfigError(f"{path} is a folder; give the name of a file to write")
    if is_folder and path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is not a folder; give a folder for the results")
    folder = path if is_folder else path.parent
    while is_folder and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{path} cannot be written: {folder} is not a folder")
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            clear_leftovers(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write into a one-sentence error, and show the writing as progress."""
    with refusing_unwritable(path), progress.phase(f"writing {path}"):
        yield


@contextlib.contextmanager
def resumable(name: str, path: Path) -> Iterator[None]:
    """Print where the finished part is if the user interrupts the block."""
    try:
        yield
    except KeyboardInterrupt:
        say(name, f"{path} has what was done; --resume goes on from there")
        raise
