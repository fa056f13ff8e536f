"""Runs made by other processes: the same bytes, whatever becomes of a worker or of the scheduler."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files import python_files
from blis_jax.metrics.compiled import figures_of
from blis_jax.runs.calls import Call
from blis_jax.runs.many_runs import run_grid
from blis_jax.runs.options import Options
from blis_jax.workload.spec import load_builtin, override
from tests.support import dask_processes

distributed = pytest.importorskip("distributed", reason="the extra `distributed` is not installed")
from blis_jax.runs import scheduler, tasks  # noqa: E402

SPEC = override(load_builtin("mixed"), num_requests=40)
OPTIONS = Options(resolve_ties=False)
CONFIGS = [ClusterConfig(num_instances=n, routing_policy="weighted") for n in (2, 3)]
SEEDS = tuple(range(40))  # three blocks of a configuration
SUMMARIZE = figures_of(["ttft_p99_ms", "e2e_mean_ms", "tokens_per_sec"])


def figures(**more: Any) -> bytes:
    """Return all figures as bytes."""
    grid = run_grid(CONFIGS, SPEC, SEEDS, SUMMARIZE, OPTIONS, **more)
    return np.array([[list(run.metrics.values()) for run in row] for row in grid.rows]).tobytes()


@pytest.fixture(scope="module")
def in_threads() -> bytes:
    return figures()


# --- in one process -------------------------------------------------------------------------------


class InThisProcess:
    """Makes calls here, packed and unpacked as for another process."""

    def made(self, calls: Any, summarize: Any) -> Any:
        shelf = tasks.Shelf(summarize)
        for batch in (calls[1:], calls[:1]):
            task = pickle.loads(pickle.dumps(tasks.task_of(batch, shelf)))
            yield from map(tasks.taken, batch, tasks.opened(tasks.make(task)).made)


def elsewhere(workers: Any) -> Callable[[], None]:
    """Let runners use these workers until the function is called that is returned."""
    before = scheduler.driver.elsewhere.set(workers)
    return lambda: scheduler.driver.elsewhere.reset(before)


def test_packed_calls_give_the_same_bytes_in_any_order(in_threads: bytes) -> None:
    end = elsewhere(InThisProcess())
    try:
        assert figures() == in_threads
    finally:
        end()


@pytest.mark.parametrize(
    "text", ["local:0", "local", "10.0.0.1:8786", "tcp://10.0.0.1", "none.json"]
)
def test_what_names_no_scheduler_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--scheduler"):
        scheduler.checked(text)


def test_other_versions_and_instruction_sets_are_refused_in_one_sentence() -> None:
    ours = tasks.identity()
    assert tasks.refusal(ours, dict(ours), "w") is None
    told = tasks.refusal(ours | {"JAX": "0.1 with jaxlib 0.1"}, ours, "the worker w")
    assert told is not None and told.startswith("the worker w has JAX 0.1")
    told = tasks.refusal({**ours, "instruction set": "x86_64 avx999"}, ours, "the worker w")
    assert told is not None and "avx999" in told and "instruction set" in told


def test_a_task_of_another_version_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tasks.identity() | {"blis_jax": "0.0.1 (abc)"}

    class Older(InThisProcess):
        def made(self, calls: Any, summarize: Any) -> Any:
            monkeypatch.setattr(tasks, "identity", lambda: theirs)
            shelf = tasks.Shelf(summarize)
            task = tasks.task_of(calls[:1], shelf)
            monkeypatch.undo()
            tasks.opened(tasks.make(task))
            yield

    end = elsewhere(Older())
    try:
        with pytest.raises(ConfigError, match=r"has blis_jax .*, and this process has 0\.0\.1"):
            figures()
    finally:
        end()


def test_policies_of_files_travel_as_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(POLICY, encoding="utf-8")
    config = ClusterConfig(
        num_instances=3, routing_policy="weighted", routing_scorers=f"{file}:calm:1"
    )

    def ends(*, is_gone: bool = False) -> list[bytes]:
        runs = run_grid([config], SPEC, SEEDS[:2], lambda run: run.requests.left_us, OPTIONS)
        return [np.asarray(run).tobytes() for run in runs.rows[0]]

    expected = ends()
    monkeypatch.setattr(python_files, "_brought", {})  # of what is taken over here, others see none

    class Elsewhere(InThisProcess):
        def made(self, calls: Any, summarize: Any) -> Any:
            for call in calls:
                task = tasks.task_of([call], tasks.Shelf(summarize))
                assert file.read_bytes() in task.files.values()
                text = file.read_text(encoding="utf-8")
                file.unlink()  # a worker has no such file
                there = replace(task, process="another")
                yield tasks.taken(call, *tasks.opened(tasks.make(there)).made)
                file.write_text(text, encoding="utf-8")

    end = elsewhere(Elsewhere())
    try:
        assert ends() == expected
    finally:
        end()


def test_a_worker_in_the_sending_process_takes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same relative path is another file in another working directory, and none in a third."""
    asked = ClusterConfig(num_instances=3, routing_policy="weighted")
    end = elsewhere(InThisProcess())
    try:
        for name in ("calm", "", "calmer"):
            folder = tmp_path / f"of_{name}"
            folder.mkdir()
            monkeypatch.chdir(folder)
            if name:
                text = POLICY.replace("def calm(", f"def {name}(")
                Path("mine.py").write_text(text, encoding="utf-8")
            config = replace(asked, routing_scorers=f"mine.py:{name}:1") if name else asked
            run_grid([config], SPEC, SEEDS[:2], SUMMARIZE, OPTIONS)
    finally:
        end()


POLICY = """
from typing import Any

import jax.numpy as jnp

from blis_jax.policies import number, pytree, scorer


def work(seen, weight):
    waiting = (seen.queue_depth + seen.num_pending).astype(jnp.float64)
    return seen.batch_size.astype(jnp.float64) + weight * waiting


@pytree
class CalmParams:
    waiting: Any = number(2.0, "", "weight of a waiting request", low=0, high=10)


@scorer(CalmParams)
def calm(params, state, context):
    return 1.0 / (1.0 + work(context.snapshots, params.waiting)), state
"""


@pytest.mark.parametrize(
    ("given", "num_gpus", "seen"),
    [
        ("2,5", 0, ["2", "5", "2"]),  # of a job that has two
        (None, 4, ["0", "1", "2"]),
        (None, 0, [None, None, None]),
        ("", 4, ["", "", ""]),  # none may be used
    ],
)
def test_each_worker_of_this_machine_takes_one_gpu(
    given: str | None, num_gpus: int, seen: list[str | None],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for at in range(num_gpus):
        (tmp_path / f"0000:{at}").mkdir()
    monkeypatch.setattr(tasks, "NVIDIA", tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for at, expected in enumerate(seen):
        name = (at, f"gpu-{at}")[
            at % 2
        ]  # of a worker that the command starts, and of `dask worker --name gpu`
        with pytest.MonkeyPatch.context() as patch:
            if given is None:
                patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            else:
                patch.setenv("CUDA_VISIBLE_DEVICES", given)
            tasks.dask_setup(SimpleNamespace(name=name))
            found = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            assert found == expected


def test_a_worker_that_was_started_has_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")
    with scheduler.Workers("local:2") as workers, pytest.warns(ConfigWarning):
        workers.client.wait_for_workers(2)
        names = ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_PREALLOCATE")
        seen = workers.client.run(lambda: [os.environ[name] for name in names])
    assert sorted(seen.values()) == [["3", "false"], ["7", "false"]]


def test_a_task_takes_a_second_and_less_towards_the_end() -> None:
    workers = scheduler.Workers("local:2")

    class OfKind(Call):
        kind = property(lambda call: call.group)

    kinds: list[Any] = ["one"] * 50 + ["other"] * 3
    calls = [OfKind(kind, (), 1) for kind in kinds]
    waiting = scheduler.deque(calls)
    assert workers._batch(waiting, 2) == calls[:1]  # nobody knows how long it takes
    workers.call_s["one"] = scheduler.TASK_S / 8.5
    sizes = []
    while waiting:
        sizes.append(len(batch := workers._batch(waiting, 2)))
        assert len({call.kind for call in batch}) == 1
    assert sizes[:3] == [8, 8, 8] and sizes[3:7] == [7, 5, 4, 3] and sum(sizes) == 52
    assert sizes[-4:] == [1, 1, 1, 1]


def test_a_worker_without_space_gets_no_more_tasks() -> None:
    workers = scheduler.Workers("local:2")
    client: Any = SimpleNamespace(nthreads=lambda: {"tcp://a": 1, "tcp://b": 1})
    full = [tasks.Reply(lacks="No space left on device", worker=f"tcp://{name}") for name in "ab"]
    with pytest.warns(
        ConfigWarning, match=r"tcp://a cannot go on \(No space left.*by others \(1 left\)"
    ):
        workers._do_without(client, full[0])
    with pytest.raises(
        ConfigError, match=r"cannot go on \(No space left on device\).*add --resume"
    ):
        workers._do_without(client, full[1])


# --- other processes ------------------------------------------------------------------------------


def test_a_local_worker_gives_the_same_bytes(in_threads: bytes) -> None:
    with (
        scheduler.used("local:1") as workers,
        pytest.warns(ConfigWarning, match="1 worker of local:1"),
    ):
        assert figures() == in_threads
    assert workers is not None
    assert workers.num_tasks == 5  # blocks of 16


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same_bytes(
    num_workers: int, tmp_path: Path, in_threads: bytes
) -> None:
    with (
        dask_processes.cluster(tmp_path, num_workers) as cluster,
        distributed.Client(scheduler_file=str(cluster.file)) as client,
    ):
        client.wait_for_workers(num_workers)
        with scheduler.used(client):
            assert figures() == in_threads


def at_first_row(act: Callable[[], object]) -> Callable[..., None]:
    """Return what does something when the first run has come."""
    rest = [act]
    return lambda *_: rest.pop()() if rest else None  # type: ignore[func-returns-value]


@pytest.mark.slow
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_changes_nothing(
    with_signal: signal.Signals, tmp_path: Path, in_threads: bytes
) -> None:
    silent_s = 20 if with_signal == signal.SIGSTOP else dask_processes.SILENT_S
    with (
        dask_processes.cluster(tmp_path, 2, silent_s) as cluster,
        scheduler.used(str(cluster.file)) as workers,
    ):
        assert workers is not None
        with pytest.warns(ConfigWarning):
            workers.client.wait_for_workers(2)
        lose = at_first_row(lambda: cluster.workers[0].send_signal(with_signal))
        counts: list[int] = []
        with pytest.warns(ConfigWarning, match="is gone; its runs are made again"):
            assert figures(on_row=lose, progress=counts.append) == in_threads
        assert sum(counts) == len(CONFIGS) * len(SEEDS)  # nothing came twice


@pytest.mark.slow
def test_a_lost_scheduler_is_said_and_the_rest_is_made_later(
    tmp_path: Path, in_threads: bytes
) -> None:
    known: dict[tuple[int, int], Any] = {}
    with dask_processes.cluster(tmp_path, 2) as cluster, scheduler.used(str(cluster.file)):
        lose = at_first_row(cluster.scheduler.kill)

        def keep(point: int, seed: int, run: Any) -> None:
            known[point, seed] = run
            lose()

        with (
            pytest.warns(ConfigWarning),
            pytest.raises(ConfigError, match=r"is gone.* add --resume"),
        ):
            figures(on_row=keep)
    assert 0 < len(known) < len(CONFIGS) * len(SEEDS)
    with (
        dask_processes.cluster(tmp_path, 1) as cluster,
        scheduler.used(str(cluster.file)),
        pytest.warns(ConfigWarning),
    ):
        assert figures(known=known) == in_threads


@pytest.mark.slow
def test_a_worker_without_space_gives_the_same_bytes(tmp_path: Path, in_threads: bytes) -> None:
    with dask_processes.cluster(tmp_path, 0) as cluster:
        cluster.add_worker(dask_processes.NO_SPACE)
        with scheduler.used(str(cluster.file)), pytest.warns(ConfigWarning):
            assert figures() == in_threads


def stored_runs(folder: Path, **more: Any) -> list[tuple[float, str]]:
    """Return a figure of each run, and the name of the file that whoever made it has written."""
    keep = figures_of(["ttft_p99_ms"], store=folder)
    grid = run_grid(CONFIGS[:1], SPEC, SEEDS, keep, OPTIONS, **more)
    return [(run.metrics["ttft_p99_ms"], Path(run.stored).name) for run in grid.rows[0]]


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["full", "limited"])
def test_a_worker_without_space_beside_a_good_one(disk: str, tmp_path: Path) -> None:
    """The kernel refuses what one of two processes writes; the other makes its runs, and each once."""
    expected, shared = stored_runs(tmp_path / "here"), tmp_path / "shared"
    shared.mkdir()
    tried = [*dask_processes.on_full_disk(shared), "test", "-e", str(shared / "full")]
    if disk == "full" and subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("a full disk is a small tmpfs, and this machine lets nobody mount one")
    counts: list[int] = []
    with dask_processes.cluster(tmp_path, 1) as cluster:
        if disk == "full":
            cluster.add_worker(full=shared)
        else:
            cluster.add_worker(dask_processes.NO_SPACE)
        with scheduler.used(str(cluster.file)) as workers:
            assert workers is not None
            with pytest.warns(ConfigWarning):
                workers.client.wait_for_workers(2)
            why = {"full": "No space left on device", "limited": "File too large"}[disk]
            words = rf"cannot go on \({why}\); its runs are made by others \(1 left\)"
            with pytest.warns(ConfigWarning, match=words):
                assert stored_runs(shared, progress=counts.append) == expected
    assert sum(counts) == len(SEEDS)
    assert sorted(file.name for file in shared.iterdir()) == sorted(name for _, name in expected)


@pytest.mark.slow
def test_a_worker_whose_disk_fills_half_way_changes_nothing(tmp_path: Path) -> None:
    """The command ends with a sentence, and goes on later; nothing is there twice."""
    expected, known = stored_runs(tmp_path / "here"), dict[tuple[int, int], Any]()
    alone, fills = tmp_path / "alone", dask_processes.FILLS.format(num_files=20)

    def keep(point: int, seed: int, run: Any) -> None:
        known[point, seed] = run

    with dask_processes.cluster(tmp_path, 0) as cluster:
        cluster.add_worker(fills)
        with scheduler.used(str(cluster.file)), pytest.warns(ConfigWarning):
            with pytest.raises(ConfigError, match=r"No space left on device.* add --resume"):
                stored_runs(alone, on_row=keep)
            assert 0 < len(known) < len(list(alone.glob("*.npz"))) == 20  # of 40
    with (
        dask_processes.cluster(tmp_path, 1) as cluster,
        scheduler.used(str(cluster.file)),
        pytest.warns(ConfigWarning),
    ):
        assert stored_runs(alone, known=known) == expected
    assert sorted(file.name for file in alone.iterdir()) == sorted(name for _, name in expected)
