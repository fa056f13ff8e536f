"""Compiled programs on disk: a later process neither traces nor lowers a program that an earlier one has compiled.

They lie in the folder `programs` of JAX's compilation cache and go with it. A program is found by a hash of everything
that it depends on: the values and functions that it is built of; the arguments' shapes; every file of this package;
JAX's settings and version; XLA's flags; and the machine's processor. A program that depends on anything else, such as a
policy of a user's file, is not kept. A damaged file is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import math
import os
import pickle
import platform
import sys
import zlib
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import methodcaller
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.experimental import serialize_executable

from blis_jax import backend
from blis_jax.core.pytrees import register_declared
from blis_jax.engine.loop import USED_UP
from blis_jax.files.atomic_write import replacing

MOST_FILES = 200  # the ones used last stay; a program takes some 300 KB
PACKAGE = Path(__file__).parents[1]
DIGEST_BYTES = hashlib.sha256().digest_size


class UnnamedError(Exception):
    """Raised for a value that has no name which is the same in every process."""


def name_of(value: object) -> str:
    """Return a text that is the same for equal values in every process, and differs for others.

    Raises:
        UnnamedError: a value is neither plain, nor made of plain ones, nor defined in this package.
    """
    if isinstance(value, bool | int | float | str | bytes | None):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise UnnamedError(repr(value))
        return f"array:{array.dtype.str}:{array.shape}:{array.tobytes().hex()}"
    if isinstance(value, type):
        return _defined(value)
    if isinstance(value, np.dtype | enum.Enum):
        return f"{_defined(type(value))}:{value!r}"
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        # two of one line are told apart by their columns
        place = tuple(value.__code__.co_positions())
        return (
            f"{_defined(value)}:{name_of([place, cells, value.__defaults__, value.__kwdefaults__])}"
        )
    if isinstance(value, MethodType):
        return f"method:{name_of(value.__func__)}:{name_of(value.__self__)}"
    if isinstance(value, functools.partial):
        return f"partial:{name_of([value.func, value.args, value.keywords])}"
    if isinstance(value, methodcaller):
        made, arguments = tuple(value.__reduce__())
        bound = [getattr(made, "args", ()), getattr(made, "keywords", {})]  # where it has keywords
        return f"methodcaller:{name_of([*bound, arguments])}"
    return _defined(type(value)) + _members(value)


def _members(value: object) -> str:
    if isinstance(value, frozenset | set):
        return f"{{{','.join(sorted(map(name_of, value)))}}}"
    if isinstance(value, tuple | list):
        return f"({','.join(map(name_of, value))})"
    if isinstance(value, Mapping):
        return _members({(name_of(key), name_of(member)) for key, member in value.items()})
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return _members(fields)
    raise UnnamedError(repr(value))


def _defined(thing: type | FunctionType) -> str:
    """Return the qualified name of a class or function of this package, or of a class of Python or numpy."""
    module = thing.__module__
    root = module.partition(".")[0]
    is_ours = root == PACKAGE.name and hasattr(sys.modules.get(module), "__file__")
    # a user's function may bear the names of one of ours, by `functools.wraps`
    is_ours &= isinstance(thing, type) or Path(thing.__code__.co_filename).is_relative_to(PACKAGE)
    if is_ours or (isinstance(thing, type) and root in ("builtins", "numpy", "types")):
        return f"{module}.{thing.__qualname__}"
    raise UnnamedError(f"{module}.{thing.__qualname__}")


@functools.cache
def _surroundings() -> str:
    """Return the name of all on which every program depends: the package's files, versions, flags and the processor."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            stat = path.stat()
            # a copy may keep the older time of its content
            if max(stat.st_mtime, stat.st_ctime) > backend.IMPORTED_AT:
                raise UnnamedError(f"{path} is not what was imported")
            digest.update(f"{path.relative_to(PACKAGE)}:{stat.st_size}:".encode())
            digest.update(path.read_bytes())
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    processor = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    names = [name for name in os.environ if name.startswith(("XLA_", "JAX_", "NPROC"))]
    settings = {name: os.environ[name] for name in names if "CACHE" not in name}
    versions = jax.__version__, jaxlib.__version__, np.__version__, sys.version, platform.platform()
    device = jax.devices()[0]
    cores = len(os.sched_getaffinity(0))  # of this process, which XLA shares its work among
    parts = digest.hexdigest(), processor, settings, versions, cores, len(jax.devices())
    return name_of([*parts, device.device_kind, device.client.platform_version])


def _settings() -> str:
    """Return JAX's settings, except those about logs, dumps and caches."""
    skipped = ("cache", "log", "dump", "traceback", "explain")
    settings: Mapping[str, Any] = jax.config.values
    kept = {name: repr(value) for name, value in settings.items() if not any(
        word in name for word in skipped)}  # fmt: skip
    return name_of([kept, bool(jax.config.jax_enable_x64)])  # type: ignore[attr-defined]


def folder() -> Path | None:
    """Return the folder of kept programs; None if JAX caches none, or the device is not a CPU under Linux."""
    settings: Any = jax.config
    place = settings.jax_compilation_cache_dir
    is_kept = settings.jax_enable_compilation_cache and place and Path("/proc/cpuinfo").exists()
    is_kept = is_kept and backend.keeps_programs
    return Path(place) / "programs" if is_kept and jax.default_backend() == "cpu" else None


def shapes_of(arguments: tuple[Any, ...]) -> tuple[Hashable, ...]:
    """Return shape and type of every array in the arguments, how they are nested, and JAX's settings."""
    leaves, tree = jax.tree.flatten(arguments)
    types = [(getattr(x, "dtype", type(x)), getattr(x, "weak_type", False)) for x in leaves]
    return *zip(map(np.shape, leaves), types, strict=True), tree, _settings()


def path_of(built_of: Hashable, shapes: tuple[Hashable, ...]) -> Path | None:
    """Return the path for a program, given its build arguments and its arguments' shapes; None if it is not kept."""
    place = folder()
    try:
        parts = name_of(built_of), repr(shapes), _surroundings()
    except (UnnamedError, OSError, ValueError, RecursionError):  # a function may hold itself
        return None
    return place and place / hashlib.sha256("\n".join(parts).encode()).hexdigest()


def load(path: Path) -> Any:
    """Load a compiled program; None if the file is missing or damaged."""
    try:
        content = path.read_bytes()
        digest, packed = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(packed).digest() != digest:
            return None
        register_declared()
        program = serialize_executable.deserialize_and_load(*pickle.loads(zlib.decompress(packed)))
        os.utime(path)
    except Exception:  # whatever an old or foreign file does: it is made again
        return None
    return program


def not_in_cache_of_jax() -> AbstractContextManager[object]:
    """Return a context in which JAX's cache stores no program of this thread.

    XLA leaves functions out when it writes a program that it has read: NOT_FOUND: Function wrapped_iota not found.
    """
    # no public function says it of one thread; without it a program may have to be made again
    seconds = getattr(jax._src.config, "persistent_cache_min_compile_time_secs", None)
    return seconds(math.inf) if callable(seconds) else nullcontext()


def save(path: Path, program: jax.stages.Compiled) -> None:
    """Write a compiled program; beyond MOST_FILES programs, delete those not used for longest."""
    try:
        packed = zlib.compress(pickle.dumps(serialize_executable.serialize(program)), 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            scratch.write_bytes(hashlib.sha256(packed).digest() + packed)
        files = sorted(path.parent.iterdir(), key=lambda file: -file.stat().st_mtime)
        for file in files[MOST_FILES:]:
            file.unlink(missing_ok=True)
    except Exception:  # a full or read-only disk, or a program that JAX cannot write
        return


class Program:
    """A function that runs the engine, compiled for each shape of its arguments."""

    def __init__(self, build: Callable[..., Callable[..., Any]], statics: tuple[Any, ...]) -> None:
        """Build the function; it is traced when a shape is new."""
        self.built_of, self.used_up = (build, statics), USED_UP.get(build, ())
        self.jitted = jax.jit(build(*statics), donate_argnums=self.used_up)

    def __call__(self, *arguments: object) -> Any:
        """Return what the function returns."""
        return self.jitted(*arguments)

    def lower(self, *arguments: object) -> Callable[[], object]:
        """Trace the function for the shapes of these arguments; return what compiles it."""
        return self.jitted.lower(*arguments).compile

    def shapes(self, *arguments: object) -> Any:
        """Return shape and dtype of what the function returns for arguments of these shapes."""
        return jax.eval_shape(self.jitted, *arguments)


class KeptProgram(Program):
    """A program that is loaded from disk if an earlier process has kept it, and kept if it has a name."""

    def __init__(self, build: Callable[..., Callable[..., Any]], statics: tuple[Any, ...]) -> None:
        """Build the function; it is traced when a shape is new and not on disk."""
        super().__init__(build, statics)
        # by the shapes of arguments
        self.ready: dict[Hashable, Any] = {}
        self.returned: dict[Hashable, Any] = {}
        self.loaded: dict[Hashable, Path] = {}

    def __call__(self, *arguments: object) -> Any:
        """Return what the function returns."""
        shapes = shapes_of(arguments)
        if shapes not in self.ready:
            self.lower(*arguments)()
        if shapes not in self.loaded:
            return self.ready[shapes](*arguments)
        spared = [
            jax.tree.map(jnp.copy, argument) if place in self.used_up else argument
            for place, argument in enumerate(arguments)
        ]
        try:
            made = jax.block_until_ready(self.ready[shapes](*spared))
        except jax.errors.JaxRuntimeError:  # XLA may leave out a function when it writes a program
            with contextlib.suppress(KeyError):  # another thread has met it
                self.loaded.pop(shapes).unlink(missing_ok=True)
            self.ready[shapes] = self.jitted
            return self.jitted(*arguments)
        if self.used_up:  # it runs, and needs no further copies
            self.loaded.pop(shapes, None)
        return made

    def lower(self, *arguments: object) -> Callable[[], object]:
        """Trace the function for the shapes of these arguments, unless it is on disk; return what compiles it."""
        shapes = shapes_of(arguments)
        if shapes in self.ready:
            return lambda: None
        path = path_of(self.built_of, shapes)
        if not path:
            lowered = self.jitted.lower(*arguments)
            self.returned[shapes] = lowered.out_info
            return lambda: self.ready.update({shapes: lowered.compile()})
        if kept := load(path):
            self.ready[shapes], self.loaded[shapes] = kept, path
            return lambda: None
        renamed = _renamed(self.built_of, path.name)
        lowered = jax.jit(renamed, donate_argnums=self.used_up).lower(*arguments)
        self.returned[shapes] = lowered.out_info

        def compile_and_keep() -> None:
            with not_in_cache_of_jax():
                self.ready[shapes] = lowered.compile()
            save(path, self.ready[shapes])

        return compile_and_keep

    def shapes(self, *arguments: object) -> Any:
        """Return shape and dtype of what the function returns for arguments of these shapes."""
        shapes = shapes_of(arguments)
        if shapes in self.loaded:
            return self.ready[shapes].out_info
        return self.returned.get(shapes) or jax.eval_shape(self.jitted, *arguments)


def _renamed(built_of: tuple[Callable[..., Any], tuple[Any, ...]], name: str) -> Callable[..., Any]:
    """Return the function with a new `__name__`, so that it matches no program in JAX's cache."""
    build, statics = built_of
    function = build(*statics)

    def program(*arguments: object) -> Any:
        return function(*arguments)

    program.__name__ = f"{build.__name__}_{name[:16]}"
    return program
