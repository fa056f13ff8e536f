"""Write files and folders that appear complete or not at all, even if the writer is killed; locks; and BLIS's JSON
layout.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import blis_jax
from blis_jax.errors import ConfigError, refusing_unwritable
from blis_jax.lazy import pandas

try:
    import fcntl
except ModuleNotFoundError:  # Windows: no lock is taken, so no lock is ever found free
    fcntl = None  # type: ignore[assignment]

NO_LOCK = -1  # in place of a descriptor where the file system has no locks


def take(path: Path) -> int | None:
    """Lock a file, creating it if need be, and return its descriptor; `let_go` ends the lock.

    Return None if another process holds the lock or has removed the file or its folder, and NO_LOCK if the file system
    has no locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        return None
    try:
        if fcntl is None:
            raise OSError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        return NO_LOCK
    if not is_at(path, descriptor):
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):  # a full disk: then the holder has no name
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
    return descriptor


def wait_for(descriptor: int, *, is_shared: bool = False) -> None:
    """Wait for and lock an open file, shared between readers if `is_shared`; closing the file ends the lock."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)


def take_over(path: Path) -> int | None:
    """Lock a file unless it was locked on another machine, whose locks may not be seen here.

    Return the lock's descriptor; None if another machine locked the file, if the process that locked it is alive, or if
    the file system has no locks.
    """
    _, machine = _holder(path)
    if machine not in ("", platform.node()):
        return None
    descriptor = take(path)
    return None if descriptor == NO_LOCK else descriptor


def let_go(descriptor: int) -> None:
    """End the lock of a descriptor, and close it."""
    if descriptor != NO_LOCK:
        os.close(descriptor)


def is_at(path: Path, descriptor: int) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keep other processes from writing `path` through this function; refuse if another process is writing it.

    The lock is a hidden file beside `path`. A killed process leaves the lock file behind, and the next process that
    locks `path` reuses it.
    """
    lock = path.with_name(f".{path.name}.lock")
    with refusing_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = take(lock)
    if descriptor is None:
        pid, machine = _holder(lock)
        who = f" ({pid} on {machine})" if pid else ""
        raise ConfigError(
            f"{path} is being written by another process{who}; wait for its end, or give another place"
        )
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        let_go(descriptor)


def _holder(lock: Path) -> tuple[str, str]:
    """Return the process number and machine that last locked a file; empty if the file does not say."""
    try:
        pid, _, machine = lock.read_text(encoding="utf-8").strip().partition(" ")
    except (OSError, ValueError):
        return "", ""
    return pid, machine


# Names in a scratch folder beside the written path. The folder is locked while its process lives.
NEW, ASIDE, DISCARDED, LOCK = "new", "aside", "discarded", "lock"
ENDING = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; the result replaces `path` when the block ends without error.

    An existing folder is moved aside first, so for a moment `path` does not exist; a file is replaced atomically.
    Leftovers of killed processes that wrote `path` are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_leftovers(path)
    with _scratch(path) as scratch:
        (scratch / NEW).mkdir()
        written = scratch / NEW / path.name
        try:
            yield written
        except OSError as error:
            error.filename = error.filename or os.fspath(path)  # a full disk names no file
            raise
        if path.is_dir():
            aside = scratch / ASIDE
            path.rename(aside)
            try:
                written.rename(path)
            except OSError:
                aside.rename(path)
                raise
        else:
            os.replace(written, path)


def discard(path: Path) -> None:
    """Remove a file or a folder atomically: if the process is killed, `path` is either whole or gone."""
    clear_leftovers(path)
    if path.exists():
        with _scratch(path) as scratch:
            path.rename(scratch / DISCARDED)


def clear_leftovers(path: Path) -> None:
    """Remove the leftovers of killed processes that wrote `path`.

    If a process was killed while it replaced a folder, the new folder is moved to `path`. Files of living processes and
    of other machines stay.
    """
    name = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(ENDING)}")
    entries = list(path.parent.iterdir()) if path.parent.is_dir() else []
    for scratch in entries:
        if name.fullmatch(scratch.name):
            with suppress(OSError):  # leftovers that cannot be removed do no harm
                _clear(scratch, path)


def _clear(scratch: Path, path: Path) -> None:
    """Remove a dead process's scratch folder, after moving an unfinished replacement of `path` into place."""
    lock = take_over(scratch / LOCK)
    if lock is None:
        return
    try:
        new = scratch / NEW / path.name
        if (scratch / ASIDE).exists() and new.exists() and not path.exists():
            new.rename(path)
        shutil.rmtree(scratch)
    finally:
        let_go(lock)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Yield a locked scratch folder beside `path`, and remove it when the block ends."""
    lock = None
    while lock is None:  # again, if it was taken for a leftover before it was locked
        folder = Path(tempfile.mkdtemp(ENDING, f".{path.name}.", path.parent))
        lock = take(folder / LOCK)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        let_go(lock)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, document: object) -> None:
    """Write JSON in the reference's layout: indented by two spaces, whole numbers without a fraction."""
    with replacing(path) as written:
        written.write_text(json_text(document), encoding="utf-8")


def write_csv(path: Path, table: pandas.DataFrame, digits: int | None = None) -> None:
    """Write a data frame without its index, whole or not at all, with at most `digits` significant digits.

    Raises:
        ConfigError: the file cannot be written.
    """
    with refusing_unwritable(path), replacing(path) as written:
        table.to_csv(
            written, index=False, float_format=digits and f"%.{digits}g", lineterminator="\n"
        )


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as written:
        written.write_text(text, encoding="utf-8")


def json_text(document: object, indent: int | None = 2) -> str:
    """Return the JSON text of a document, on one line if `indent` is None; refuses NaN and infinities."""
    return json.dumps(whole_numbers(document), indent=indent, ensure_ascii=False, allow_nan=False)


# a number at the end of a line, where a text ends with a quotation mark
_SMALL = re.compile(r"(?m)(?<=[ \[])-?\d(?:\.\d+)?e-\d+(?=,?$)")


def json_as_go(document: object) -> str:
    """Return the JSON text with Go's format for small numbers: an exponent only below a millionth."""
    return _SMALL.sub(_as_go, json_text(document))


def _as_go(number: re.Match[str]) -> str:
    digits, exponent = number[0].split("e")
    return f"{Decimal(number[0]):f}" if int(exponent) >= -6 else f"{digits}e{int(exponent)}"


def finite(value: float | None, digits: int | None = None) -> float | None:
    """Return a number rounded to `digits` decimals for JSON: None for NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(value) if digits is None else round(float(value), digits)


def plain(value: object, digits: int | None = None) -> Any:
    """Return a value converted to JSON types, with floats rounded to `digits` decimals: None for NaN and infinities,
    lists for tuples and arrays.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(entry, digits) for name, entry in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(entry, digits) for entry in value]
    return finite(value, digits) if isinstance(value, float) else value


def whole_numbers(value: object) -> Any:
    """Return the document with whole floats converted to integers, as the reference writes them."""
    if isinstance(value, dict):
        return {name: whole_numbers(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [whole_numbers(entry) for entry in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value


# --- results that exist: replaced with --overwrite, gone on with by --resume ----------------------

# A command continues saved work if everything on which its numbers depend is the same. Datasets, journals of runs,
# training states, and all other saved work that can be continued store the values on which they depend, by names that
# a user knows, and compare them here.

Outputs = Mapping[str, "Path | Sequence[Path | None] | None"]  # by the option that names them


def refuse_existing(outputs: Outputs, overwrite: bool, resume: bool | None = None) -> None:
    """Refuse existing outputs unless they may be replaced or continued; `resume` is None if continuing is
    impossible.
    """
    if overwrite and resume:
        raise ConfigError("--overwrite and --resume contradict each other; give one of them")
    is_allowed = overwrite or resume
    choices = "--overwrite" if resume is None else "--resume to continue it, --overwrite"
    for option, paths in outputs.items():
        for path in [paths] if isinstance(paths, Path) else paths or ():
            if path is None or not os.path.lexists(path):
                continue
            if path.exists() and not path.is_file() and not path.is_dir():
                raise ConfigError(f"{path} is not a file; give another {option}")
            if not is_allowed:
                raise ConfigError(
                    f"{path} exists; give {choices} to replace it, or another {option}"
                )


ADVICE = "give --overwrite or another --output"


def fingerprint(content: object) -> str:
    """Return the first sixteen hex digits of a hash of the content's JSON text."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def version_of(package: str) -> str:
    """Return the installed version of a package, or `unknown`; for this package, the version of the running code."""
    if package == "blis-jax":
        return blis_jax.__version__
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions on which all numbers depend, by a readable name."""
    names = {"version of blis_jax": "blis-jax", "version of JAX": "jax"}
    return {words: version_of(package) for words, package in names.items()}


def refuse_other_work(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], advice: str = ADVICE
) -> None:
    """Refuse to continue saved work if anything on which its numbers depend has changed; the error names the change.

    Args:
        path: where the saved work is, for the message.
        before: the values on which the saved numbers depend, by readable name.
        now: the same values for the requested work.
        advice: what the user can do, for the message.

    Raises:
        ConfigError: a value differs, or only one of `before` and `now` has it.
    """
    names = (*now, *(name for name in before if name not in now))
    other = [name for name in names if name not in before or before[name] != now.get(name)]
    if other:
        raise ConfigError(f"{path} was made with different {', '.join(other)}; {advice}")
