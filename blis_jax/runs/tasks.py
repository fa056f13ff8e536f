"""Compiled calls as a task for another process: packed here, made in a worker, whose reply is unpacked here.

The calls of a task have one kind and one number of rows. The parts from which their program is built are packed once,
under the hash of their bytes; a worker unpacks them once, so that all tasks with these parts share a compiled program.
Users' policy files are sent as source, with their hash, and imported in the worker.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import pickle
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import jaxlib
import numpy as np

from blis_jax import __version__, backend
from blis_jax.core.types import Mechanism
from blis_jax.errors import ConfigError
from blis_jax.files import python_files
from blis_jax.lazy import cloudpickle, distributed
from blis_jax.records.record import RunRecord
from blis_jax.runs.calls import Call, Results, execute
from blis_jax.runs.driver import finished_of
from blis_jax.runs.runs import Run

Summarize = Callable[[RunRecord], Any]
PACKAGE = Path(__file__).parents[1]
WIDTHS = ("avx", "sse", "ssse", "fma", "f16c", "bmi", "amx", "asimd", "sve")  # of what XLA uses


# --- who may work together -------------------------------------------------------------------------


@functools.cache
def identity() -> dict[str, str]:
    """Return, by name, versions and hardware that must be equal in all processes for bit-equal figures."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}:".encode())
        digest.update(path.read_bytes())
    device = jax.devices()[0]
    return {
        "blis_jax": f"{__version__} ({digest.hexdigest()[:12]})",
        "JAX": f"{jax.__version__} with jaxlib {jaxlib.__version__}",
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "NumPy": np.__version__,
        "device": device.device_kind,
        "instruction set": _instruction_set() if device.platform == "cpu" else "of the device",
    }


def _instruction_set() -> str:
    """Return the machine's architecture and the vector instructions on which compiled programs depend."""
    place = Path("/proc/cpuinfo")
    lines = place.read_text(encoding="utf-8").splitlines() if place.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    widths = sorted(word for word in flags.partition(":")[2].split() if word.startswith(WIDTHS))
    return " ".join([platform.machine(), *widths])


def refusal(theirs: Mapping[str, str], ours: Mapping[str, str], who: str) -> str | None:
    """Return a sentence on how a worker's identity differs from this process's; None if they are equal."""
    for name, here in ours.items():
        there = theirs.get(name, "none")
        if there == here:
            continue
        if name == "instruction set":
            lacking = sorted(set(here.split()) - set(there.split()))
            further = sorted(set(there.split()) - set(here.split()))
            there, here = (", ".join(words) or "nothing besides" for words in (further, lacking))
            return (
                f"{who} has another instruction set than this machine (it alone has {there}; this machine alone "
                f"has {here}), and figures could differ in a last bit; start workers and the command on machines "
                "of one type"
            )
        return (
            f"{who} has {name} {there}, and this process has {here}; start the workers with the same "
            "installation as the command"
        )
    return None


# --- packing --------------------------------------------------------------------------------------


@dataclass
class Shelf:
    """The packed parts that many tasks share, by the hash of their bytes."""

    summarize: Summarize
    packed: dict[str, bytes] = field(default_factory=dict)
    names: dict[Hashable, str] = field(default_factory=dict)

    def name_of(self, thing: object) -> str | None:
        """Return the hash of a part shared by many tasks, which is packed at first use; None for any other object."""
        is_summary = thing is self.summarize
        if not is_summary and not isinstance(thing, Mechanism):
            return None
        key: Hashable = "summarize" if is_summary else thing
        if key not in self.names:
            packed = _pack(thing, lambda _: None)
            self.names[key] = hashlib.sha256(packed).hexdigest()
            self.packed[self.names[key]] = packed
        return self.names[key]


_PLAIN = frozenset([int, float, str, bytes, bool, tuple, dict, list, type(None)])


def _pack(thing: object, name_of: Callable[[Any], str | None]) -> bytes:
    """Pickle a value; parts with a `name_of` are replaced by it, objects of a user's file by their place there."""

    class Packer(cloudpickle.Pickler):
        def persistent_id(self, value: Any) -> tuple[str, ...] | None:
            """Return the tuple that replaces a value in the pickle; None to pickle the value itself."""
            if type(value) in _PLAIN:  # most of what there is
                return None
            name = name_of(value)
            if name:
                return ("shelf", name)
            is_defined = isinstance(value, FunctionType | type)
            place = python_files.place_in_file(value) if is_defined else None
            return ("file", *place) if place else None

    into = io.BytesIO()
    Packer(into).dump(thing)
    return into.getvalue()


_unpacked: dict[str, Any] = {}  # in a worker, by name
_lock = threading.RLock()
_compiled: set[Hashable] = set()


def _unpack(packed: bytes, shelf: Mapping[str, bytes]) -> Any:
    class Unpacker(pickle.Unpickler):
        def persistent_load(self, name: tuple[str, ...]) -> Any:
            if name[0] == "file":
                return python_files.value_of_place(*name[1:])
            with _lock:
                if name[1] not in _unpacked:
                    _unpacked[name[1]] = _unpack(shelf[name[1]], {})
                return _unpacked[name[1]]

    return Unpacker(io.BytesIO(packed)).load()


@dataclass(frozen=True)
class PackedCalls:
    """Packed calls, to be sent to a worker; equal tasks have equal keys."""

    identity: Mapping[str, str]
    process: str  # that sends them
    files: Mapping[str, bytes]  # users' policy files, by the path as written
    shelf: Mapping[str, bytes]
    packed: bytes
    keeps_programs: bool

    @property
    def key(self) -> str:
        """Return the task's key: a hash of the runs and of all their inputs."""
        digest = hashlib.sha256(repr(sorted(self.identity.items())).encode())
        for name, source in sorted(self.files.items()):
            digest.update(name.encode() + hashlib.sha256(source).digest())
        digest.update("".join(sorted(self.shelf)).encode() + self.packed)
        return f"blis-jax-{digest.hexdigest()}"

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes sent to the worker."""
        return len(self.packed) + sum(map(len, (*self.shelf.values(), *self.files.values())))


def task_of(calls: Sequence[Call], shelf: Shelf) -> PackedCalls:
    """Pack calls; put the parts that they share with other tasks on the shelf."""
    used: dict[str, bytes] = {}

    def name_of(value: object) -> str | None:
        name = shelf.name_of(value)
        if name:
            used[name] = shelf.packed[name]
        return name

    packed = _pack((calls, shelf.summarize), name_of)
    process, files = python_files.process_name(), python_files.files_read()
    return PackedCalls(identity(), process, files, used, packed, backend.keeps_programs)


# --- in a worker ----------------------------------------------------------------------------------


NVIDIA = Path("/proc/driver/nvidia/gpus")


def dask_setup(worker: Any) -> None:
    """Set up a worker: ignore Ctrl-C, which the command handles, and use one GPU only.

    Dask calls this function in each worker that the command starts, and in those started with `dask worker --preload
    blis_jax.runs.tasks --name N`, whose names must end in numbers. JAX reads its devices later, at the first task.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gpus, number = _gpus(), re.search(r"(?:^|-)(\d+)$", str(worker.name))
    if gpus and number:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(number[1]) % len(gpus)]


def _gpus() -> list[str]:
    """Return CUDA's names of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return list(map(str, range(len(list(NVIDIA.iterdir()))))) if NVIDIA.is_dir() else []


@dataclass(frozen=True)
class Made:
    """A worker's result of a call: the summaries of finished runs, and the states of the others."""

    kept: Sequence[tuple[int, Any]]  # by the run's place in the call
    left: Sequence[tuple[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Reply:
    """A worker's reply to a task."""

    made: Sequence[Made] = ()
    call_s: float | None = None  # wall seconds of a call whose program was compiled before
    error: Exception | None = None  # which would come again
    # what the worker's machine has not, such as space on its disk; another may have it
    lacks: str = ""
    worker: str = ""  # its address


def make(task: PackedCalls) -> bytes:
    """Make the runs of a task; return the packed reply, equal in any process of the same identity."""
    try:
        reply = _made(task)
    except (OSError, MemoryError) as error:
        lacks = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reply = Reply(lacks=lacks, worker=str(distributed.get_worker().address))
    except Exception as error:
        place = python_files.place_of(error)
        said = ConfigError(f"{place}: {type(error).__name__}: {error}") if place else error
        reply = Reply(error=said)
    packed: bytes = cloudpickle.dumps(reply)
    return packed


def _made(task: PackedCalls) -> Reply:
    differs = refusal(identity(), task.identity, f"a worker on {platform.node()}")
    if differs:
        raise ConfigError(differs)
    backend.keeps_programs = task.keeps_programs
    python_files.bring(task.files, task.process)
    calls, summarize = _unpack(task.packed, task.shelf)
    made, seconds = [], []
    for call in calls:
        is_first, began = call.kind not in _compiled, time.perf_counter()
        with _lock if is_first else contextlib.nullcontext():
            results = execute(call)  # the first of a kind compiles
            _compiled.add(call.kind)
        made.append(_made_of(call, results, summarize))
        if not is_first:
            seconds.append(time.perf_counter() - began)
    return Reply(made, sum(seconds) / len(seconds) if seconds else None)


def _made_of(call: Call, results: Results, summarize: Summarize) -> Made:
    places = {run: at for at, run in enumerate(call.runs)}
    finished, _ = finished_of(call, results, summarize)
    kept = [(places[run], summary) for run, summary in finished]
    done = {at for at, _ in kept}
    return Made(kept, [(at, run.state()) for at, run in enumerate(call.runs) if at not in done])


def opened(packed: bytes) -> Reply:
    """Unpack the reply to a task.

    Raises:
        Exception: the one that ended the task.
    """
    reply: Reply = cloudpickle.loads(packed)
    if reply.error:
        raise reply.error
    return reply


def taken(call: Call, made: Made) -> tuple[list[tuple[Run, Any]], int]:
    """Apply a worker's result to a call's runs; return finished runs with summaries, and how many must be repeated."""
    for at, state in made.left:
        vars(call.runs[at]).update(state)
    for at, _ in made.kept:
        call.runs[at].hold(call.group.shape, {})
    return [(call.runs[at], kept) for at, kept in made.kept], len(made.left)
