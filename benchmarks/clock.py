"""One command in this process, its seconds by what was done; they are written as JSON.

`python -m benchmarks.clock FILE.json MODULE WORD…` starts the module as `python -m MODULE WORD…` does. What runs
in one thread is timed there, each moment under the innermost thing that is done. What the compiler does in its own
threads is told by JAX's profiler.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib._bootstrap as bootstrap
import json
import runpy
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMPILING = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}
# Python functions that stand for a thing that is done, by their module
FUNCTIONS = {
    "blis_jax.runs.calls": (("ran", "running"), ("_on_host", "running")),
    "blis_jax.runs.kept_programs": (("load", "loading"), ("save", "keeping")),
    "blis_jax.commands.run.requests": (("requests_of", "drawing"),),
    "blis_jax.workload.reference.arrays": (("draw", "drawing"),),
}
LLVM = "JitCompiler::Compile"  # of XLA; machine code and its linking


class Clock:
    """Wall and CPU seconds of every thread by activity."""

    def __init__(self) -> None:
        """Start with no seconds booked."""
        self.seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.local, self.before_last_run = threading.local(), [0.0, 0.0]

    def _turn(self, what: str | None) -> None:
        """Book the time since this thread's last call, then begin activity `what`; None: return to the one before."""
        stack, now = self._stack(), (time.perf_counter(), time.thread_time())
        if stack:
            booked, since = self.seconds[stack[-1]], self.local.since
            for at in range(2):
                booked[at] += now[at] - since[at]
        if what is None:
            if stack.pop() == "running":
                self.before_last_run = list(self.seconds["other"])
        else:
            stack.append(what)
        self.local.since = now

    def _stack(self) -> list[str]:
        stack: list[str] = self.local.__dict__.setdefault("stack", [])
        return stack

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Book the time that this thread spends inside the block under the activity `what`."""
        self._turn(what)
        try:
            yield
        finally:
            self._turn(None)

    def began(self, event: str, *_: object, **__: object) -> None:
        """Begin the activity that an event of JAX announces."""
        if event in COMPILING:
            self._turn(COMPILING[event])

    def ended(self, event: str, *_: object, **__: object) -> None:
        """End the activity whose end an event of JAX announces."""
        if event in COMPILING:
            self._turn(None)

    def around(self, function: Callable[..., Any], what: str) -> Callable[..., Any]:
        """Return the function with its time booked under `what`."""

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.doing(what):
                return function(*arguments, **named)

        return timed

    def watch_imports(self) -> None:
        """Book imports, and put the clock around `FUNCTIONS` as soon as their modules are imported."""
        find: Callable[..., Any] = bootstrap._find_and_load  # type: ignore[attr-defined]

        def found_and_loaded(name: str, import_: Any) -> Any:
            with self.doing("import"):
                module = find(name, import_)
            for function, what in FUNCTIONS.get(name, ()):
                setattr(module, function, self.around(getattr(module, function), what))
            return module

        bootstrap._find_and_load = found_and_loaded  # type: ignore[attr-defined]

    def figures(self) -> dict[str, list[float]]:
        """Return wall and CPU seconds by activity; the main thread's rest is parted at the end of the last run."""
        told = dict(self.seconds)
        other, before = told.pop("other", [0.0, 0.0]), self.before_last_run
        told["preparing"] = before
        told["reporting"] = [whole - part for whole, part in zip(other, before, strict=True)]
        return told


def _llvm_seconds(folder: str) -> float:
    """Return the wall seconds in which LLVM made and linked machine code, summed over programs."""
    profiler = importlib.import_module("jax.profiler")
    (path,) = Path(folder).rglob("*.xplane.pb")
    planes = profiler.ProfileData.from_file(str(path)).planes
    events = (event for plane in planes for line in plane.lines for event in line.events)
    return sum(event.duration_ns for event in events if event.name.split("#")[0] == LLVM) / 1e9


def main(file: str, module: str, *words: str) -> None:
    """Run the command and write its seconds; it ends with the command's own code."""
    clock, began = Clock(), time.perf_counter()
    clock.watch_imports()
    code: Any = 0
    with clock.doing("other"):
        importlib.import_module("blis_jax")  # sets XLA's flags
        jax: Any = importlib.import_module("jax")
        jax.monitoring.register_scalar_listener(clock.began)
        jax.monitoring.register_event_duration_secs_listener(clock.ended)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        with clock.doing("other"):
            sys.argv = [module, *words]
            try:
                runpy.run_module(module, run_name="__main__")
            except SystemExit as end:
                code = end.code
        wall, cpu = time.perf_counter() - began, time.process_time()
        jax.profiler.stop_trace()
        llvm = _llvm_seconds(folder)
    told = clock.figures() | {"whole": [wall, cpu], "LLVM": [llvm, 0.0]}
    Path(file).write_text(json.dumps(told), encoding="utf-8")
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
