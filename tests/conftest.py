"""Settings of the test run: strict numerics, slow tests on request, reference data."""

import argparse
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import checked_shapes
from tests.support.memory import MOST_BYTES, forget_programs, resident_bytes
from tests.support.recorded.reference_data import find_golden_dir
from tests.support.rotation import (
    Stopwatch,
    changed_since,
    distances,
    measured_seconds,
    nearest,
    part_of,
)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# As importing blis_jax sets them: one LLVM function for the whole engine loop, without unrolled loops in it, and
# the widest vectors.
CPU_FLAGS = (
    "--xla_backend_extra_options="
    "xla_cpu_small_while_loop_byte_threshold=1000000000000,xla_cpu_disable_loop_unrolling "
    "--xla_cpu_prefer_vector_width=512"
)
# Compiling is four fifths of the tests' time; programs that are not optimised compile in half of it.
NOT_OPTIMISED = " --xla_backend_optimization_level=0"
QUICK = os.environ.get("BLIS_JAX_TEST_PROGRAMS") == "quick"
os.environ.setdefault("XLA_FLAGS", f"{CPU_FLAGS}{NOT_OPTIMISED if QUICK else ''}")
# importing blis_jax would keep programs in the home folder
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")
# where in Python each operation of a program stands takes time to note, and no test reads it
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ.setdefault(
    "BLIS_JAX_PROGRESS", "off"
)  # what comes after seconds would make tests depend on them

if QUICK:  # all fast tests in CI's first stage; slow ones make much that annotations do not foresee
    checked_shapes.install()

YOUNG_OBJECTS = 20_000  # a trace makes thousands, most of which die with it

hypothesis.settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, print_blob=True
)
hypothesis.settings.load_profile("repeatable")


def _shard(text: str) -> tuple[int, int]:
    part, slash, num_parts = text.partition("/")
    if slash and part.isdecimal() and num_parts.isdecimal() and 1 <= int(part) <= int(num_parts):
        return int(part), int(num_parts)
    raise argparse.ArgumentTypeError(f"{text!r} is not K/N with 1 <= K <= N, such as 2/8")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests")
    group.addoption("--run-slow", action="store_true", help="run every slow test as well")
    group.addoption(
        "--slow-shard",
        type=_shard,
        metavar="K/N",
        help="run the K-th of N parts of the slow tests as well",
    )
    group.addoption(
        "--fast-shard",
        type=_shard,
        metavar="K/N",
        help="run only the K-th of N parts of the fast tests, beside the slow ones that are chosen",
    )
    group.addoption(
        "--slow-since",
        metavar="REVISION",
        help="run slow tests that import what differs from REVISION, nearest first, as well",
    )
    group.addoption(
        "--slow-minutes",
        type=float,
        default=20.0,
        help="minutes of CPU that --slow-since may take, by tests/data/slow_seconds.json (20)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # under xdist one process hears of all tests
        config.pluginmanager.register(Stopwatch())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [item for item in items if item.get_closest_marker("slow")]
    chosen = set(items) - set(slow)
    if fast := config.getoption("--fast-shard"):
        rest = [item for item in items if item in chosen]
        chosen = {rest[place] for place in part_of(_kinds(rest), *fast)}
    if config.getoption("--run-slow"):
        chosen |= set(slow)
    if shard := config.getoption("--slow-shard"):
        chosen |= {slow[place] for place in part_of(_kinds(slow), *shard)}
    if since := config.getoption("--slow-since"):
        places = nearest(
            _kinds(slow),
            distances(changed_since(since)),
            measured_seconds(),
            most_seconds=60 * config.getoption("--slow-minutes"),
            turn=shard[0] if shard else 0,
        )
        chosen |= {slow[place] for place in places}
    deselected = [item for item in items if item not in chosen]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item in chosen]


def _kinds(items: list[pytest.Item]) -> list[str]:
    return [item.nodeid.partition("[")[0] for item in items]


def pytest_collectstart() -> None:
    gc.disable()  # nothing dies while tests are collected, and every look at what lives takes longer


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported and collected stays alive, so it is not looked at again
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # two processes with all programs of a long run do not fit into 24 GiB; one file's tests share theirs
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and resident_bytes() > MOST_BYTES:
        forget_programs()


@pytest.fixture(autouse=True)
def strict_promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes implicit promotion of ranks and dtypes an error in our own array code."""
    if request.node.get_closest_marker("lenient_promotion"):
        yield
        return
    import jax

    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """The folder of recorded reference results, with `scheduling/` and `routing/` in it."""
    path = find_golden_dir()
    if path is None:
        pytest.skip("no reference results: neither ../shared/golden nor tests/data/golden is here")
    return path
