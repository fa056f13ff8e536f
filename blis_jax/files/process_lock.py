"""Locks that the system releases when the process that holds them ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from blis_jax.errors import ConfigError, refusing_unwritable

try:
    import fcntl
except ModuleNotFoundError:  # Windows: no lock is taken, so no lock is ever found free
    fcntl = None  # type: ignore[assignment]

NO_LOCK = -1  # in place of a descriptor where the file system has no locks


def take(path: Path) -> int | None:
    """Locks a file, made if need be, and returns its descriptor; `let_go` ends the lock.

    None: another process holds the lock or has removed the file or its folder meanwhile. NO_LOCK:
    locks do not work there.
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
    if not _is_at(path, descriptor):
        os.close(descriptor)
        return None
    with contextlib.suppress(OSError):  # a full disk: then the holder has no name
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
    return descriptor


def wait_for(descriptor: int, *, is_shared: bool = False) -> None:
    """Locks an open file, for reading only if `is_shared`, as soon as others let it go; closing ends it."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX)


def take_over(path: Path) -> int | None:
    """Locks a file unless it was locked on another machine, whose locks may not be seen here.

    None: that is so, the process that locked it is alive, or locks do not work there.
    """
    _, machine = _holder(path)
    if machine not in ("", platform.node()):
        return None
    descriptor = take(path)
    return None if descriptor == NO_LOCK else descriptor


def let_go(descriptor: int) -> None:
    """Ends a lock."""
    if descriptor != NO_LOCK:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keeps other processes from writing `path` in the same way; refuses if one does already.

    The lock is a hidden file beside `path`. A killed process leaves it behind, and the next one
    takes it over.
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
    """Number and machine of the process that locked a file last; empty where the file does not say."""
    try:
        pid, _, machine = lock.read_text(encoding="utf-8").strip().partition(" ")
    except (OSError, ValueError):
        return "", ""
    return pid, machine
