"""Programs on disk: what tells them apart, that they are the same, and that nothing stale or damaged is taken."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from blis_jax import backend
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.arrays import stacked
from blis_jax.engine.mechanism import mechanism
from blis_jax.errors import ConfigError
from blis_jax.metrics.compiled import RunFigures
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.metric import LOWER, METRICS, Metric, register
from blis_jax.metrics.summaries import SloTargets
from blis_jax.runs import kept_programs
from blis_jax.runs.kept_programs import KeptProgram, UnnamedError, name_of
from blis_jax.runs.programs import drawn_of
from blis_jax.workload.drawing.plan import DrawPlan, compile_plan
from blis_jax.workload.spec import load_builtin, override

# a program is named by the functions in it, and checked ones are wrapped
needs_names = pytest.mark.skipif(
    os.environ.get("BLIS_JAX_TEST_PROGRAMS") == "quick", reason="checked functions have no names"
)
POLICY = """
import jax.numpy as jnp
from blis_jax.policies import number, pytree, routing_policy

@pytree
class Numbers:
    weight: float = number(1.0, "", "a weight")

@routing_policy(Numbers)
def mine(params, state, context):
    return jnp.int32(0), state
"""


@pytest.fixture
def plan() -> DrawPlan:
    return compile_plan(override(load_builtin("mixed"), num_requests=8), block_size=16)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kept_programs, "folder", lambda: tmp_path)
    return tmp_path


def drawn(plan: DrawPlan) -> Any:
    """Draw seed 7 as a new process does."""
    with jax.enable_x64(True):
        rows = jax.tree.map(stacked, (plan.params, np.uint32(7)))
        return jax.device_get(KeptProgram(drawn_of, (plan.shape,))(*rows))


COMMAND = """
import sys
from blis_jax.runs import programs
if sys.argv.pop(1) == "kept":
    programs.run_row = programs.draw = None  # tracing ends in an error
from blis_jax.run import main
sys.exit(main(sys.argv[1:]))
"""
WORDS = "--model meta-llama/llama-3.1-8b-instruct --workload-spec mixed --rng jax --seed 3"


@pytest.mark.slow
def test_a_later_command_traces_nothing_and_says_the_same(tmp_path: Path) -> None:
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "true"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}

    def told(word: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", COMMAND, word, *WORDS.split()],
            env=environment, capture_output=True, check=True,
        ).stdout  # fmt: skip

    first = told("new")
    assert told("kept") == first
    shutil.rmtree(tmp_path / "programs")
    assert told("new") == first  # though XLA cannot write what it would read from JAX's cache
    assert told("kept") == first


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign"])
def test_a_damaged_file_is_not_loaded(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "program"
    kept_programs.save(path, jax.jit(lambda x: x + 1).lower(np.int32(1)).compile())
    assert kept_programs.load(path) is not None
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-9], "changed": content[:-1] + b"?", "foreign": b""}[damage])
    assert kept_programs.load(path) is None


def test_a_program_that_does_not_run_is_made_again(
    plan: DrawPlan, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = drawn(plan)

    def failing(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("NOT_FOUND: Function wrapped_iota not found")

    with monkeypatch.context() as patch:
        patch.setattr(kept_programs, "load", lambda _: failing)
        again = drawn(plan)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not list(place.iterdir())


def test_a_process_loads_a_program_once(
    plan: DrawPlan, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn(plan)
    program, loads, load = KeptProgram(drawn_of, (plan.shape,)), list[Path](), kept_programs.load
    monkeypatch.setattr(kept_programs, "load", lambda path: loads.append(path) or load(path))
    with jax.enable_x64(True):
        rows = jax.tree.map(stacked, (plan.params, np.uint32(7)))
        for _ in range(3):
            program.lower(*rows)()
            program(*rows)
    assert len(loads) == 1


def test_the_programs_used_last_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_programs, "MOST_FILES", 2)
    program = jax.jit(lambda x: x + 1).lower(np.int32(1)).compile()
    for at, name in enumerate("abc"):
        kept_programs.save(place / name, program)
        os.utime(place / name, (at, at))
    assert kept_programs.load(place / "b") is not None
    kept_programs.save(place / "d", program)
    assert {path.name for path in place.iterdir()} == {"b", "d"}


def path_of(plan: DrawPlan) -> Path | None:
    return kept_programs.path_of((drawn_of, plan.shape), kept_programs.shapes_of(()))


def test_a_number_of_python_and_one_of_numpy_are_arguments_of_two_programs() -> None:
    """JAX promotes them differently: int32 + 1.0 is a float32, and + float64(1) a float64."""
    weak = jax.numpy.asarray(1.0)
    assert weak.weak_type
    shapes = [kept_programs.shapes_of((one,)) for one in (weak, np.float32(1.0), 1.0)]
    assert len(set(shapes)) == 3
    with jax.enable_x64(True):
        assert kept_programs.shapes_of((np.float32(1.0),)) not in shapes


def test_another_plan_flag_setting_or_source_is_another_file(
    plan: DrawPlan, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del place
    package = tmp_path / "package"
    package.mkdir()
    source = package / "rules.py"
    source.write_text("LIMIT = 1")
    monkeypatch.setattr(kept_programs, "PACKAGE", package)
    monkeypatch.setattr(kept_programs, "_defined", lambda thing: thing.__qualname__)
    monkeypatch.setattr(backend, "IMPORTED_AT", float("inf"))
    monkeypatch.setattr(kept_programs, "_surroundings", kept_programs._surroundings.__wrapped__)
    paths = [path_of(plan)]
    assert path_of(plan) == paths[0]
    paths.append(path_of(compile_plan(load_builtin("mixed"), block_size=16)))
    with jax.enable_x64(True):
        paths.append(path_of(plan))
    with jax.numpy_dtype_promotion("standard"):
        paths.append(path_of(plan))
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX")
    paths.append(path_of(plan))
    source.write_text("LIMIT = 2")
    paths.append(path_of(plan))
    assert None not in paths and len(set(paths)) == len(paths)
    os.utime(source, (0, 0))  # a copy that keeps its times
    monkeypatch.setattr(backend, "IMPORTED_AT", 1.0)  # the file was changed since
    assert path_of(plan) is None


@needs_names
def test_mechanisms_have_names_by_value_and_users_policies_have_none(tmp_path: Path) -> None:
    policy = tmp_path / "mine.py"
    policy.write_text(POLICY)
    names = {
        name_of(mechanism(ClusterConfig(num_instances=2, **changes)))
        for changes in ({}, {"routing_policy": "least-loaded"}, {"priority_policy": "slo-class"})
    }
    assert len(names) == 3
    with pytest.raises(UnnamedError, match="mine"):
        name_of(mechanism(ClusterConfig(num_instances=2, routing_policy=f"{policy}:mine")))


def test_a_users_function_under_the_names_of_ours_has_no_name(place: Path) -> None:
    del place

    @functools.wraps(drawn_of)
    def mine(*_: Any) -> Any:
        return 0

    del mine.__wrapped__
    with pytest.raises(UnnamedError, match="drawn_of"):
        name_of(mine)


@needs_names
def test_a_users_metric_has_no_name_and_all_others_have() -> None:
    def figures(*names: str) -> Any:
        return RunFigures(names, SloTargets(), Measure({})).compute

    assert name_of(figures("ttft_p99_ms")) != name_of(figures("e2e_p99_ms"))
    name_of(figures(*METRICS))
    register(Metric("users_own", lambda measured: 0.0, "ms", LOWER, "nothing"))
    try:
        with pytest.raises(UnnamedError, match="test_kept_programs"):
            name_of(figures("users_own"))
    finally:
        del METRICS["users_own"]


def test_two_functions_of_one_line_have_two_names() -> None:
    names: dict[str, Any] = {"__name__": kept_programs.__name__}
    exec(compile("both = (lambda: 1), (lambda: 2)", kept_programs.__file__, "exec"), names)
    first, second = map(name_of, names["both"])
    assert first != second


def test_a_function_that_holds_itself_is_not_kept(place: Path) -> None:
    del place
    numbers: list[Any] = []
    numbers.append(numbers)
    assert kept_programs.path_of((drawn_of, functools.partial(drawn_of, numbers)), ()) is None  # type: ignore[arg-type]


def test_values_that_differ_have_names_that_differ() -> None:
    values: list[Any] = [
        1, 1.0, True, "1", b"1", None, (1,), [1], (1, 1), ((1,), 1), np.int32(1), np.float32(1),
        np.arange(2), {"a": 1}, {"a": 2}, frozenset({1}), functools.partial(name_of, 1),
        functools.partial(name_of, 2), ConfigError, name_of, drawn_of,
    ]  # fmt: skip
    assert len({name_of(value) for value in values}) == len(values)
    assert name_of({"a": 1, "b": 2}) == name_of({"b": 2, "a": 1})
    for value in (object(), lambda: 0, np.array([object()]), os):
        with pytest.raises(UnnamedError):
            name_of(value)
