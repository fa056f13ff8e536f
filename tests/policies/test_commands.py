"""A policy from a file in run, sweep, compare and optimize, with a number and memory; and the routing track's names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blis_jax.run import main as run
from sweeps.compare.__main__ import main as compare
from sweeps.optimize import main as optimize
from sweeps.sweep.command import main as sweep
from tests.sweeps.tiny import TINY

# least loaded with a preference for the first instances, ties in turns; a huge one sends everything to the first
MINE = '''
from typing import Any
import jax.numpy as jnp
from blis_jax.policies import number, pytree, routing_policy

@pytree
class Numbers:
    """How much the first instances are preferred."""
    tilt: Any = number(0.0, "requests", "load that a place further back counts as", low=0, search=(0, 1000))

@pytree
class Turn:
    """Decisions made so far."""
    count: Any

@routing_policy(Numbers, start=lambda params, shape: Turn(jnp.int32(0)))
def tilted(params: Any, state: Any, context: Any) -> Any:
    """The least loaded instance, the first ones preferred; of equals another one each time."""
    seen = context.snapshots
    place = jnp.arange(seen.effective_load.shape[0])
    turn = (place + state.count) % place.shape[0]
    cost = seen.effective_load + params.tilt * place + 1e-3 * turn
    return jnp.argmin(jnp.where(seen.is_active, cost, jnp.inf)), Turn(state.count + 1)
'''

pytestmark = pytest.mark.lenient_promotion


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    text = TINY.replace("routing_policy: weighted", "routing_policy: 'mine.py:tilted'")
    text = text.replace(
        "  routing_scorers.queue-depth: {categories: [1, 2], type: categorical}\n",
        "  tilt: {target: routing.tilt}\n",
    )
    (tmp_path / "mine.yaml").write_text(text)
    return tmp_path


def test_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "3"]
    words += ["--workload", "chatbot", "--num-requests", "12", "--rate", "20"]
    words += ["--routing-policy", f"{folder / 'mine.py'}:tilted"]
    seen = []
    for tilt in ("0", "1000"):
        path = folder / f"{tilt}.json"
        given = [*words, "--policy-numbers", f"routing.tilt={tilt}", "--results-path", str(path)]
        assert run(given) == 0
        requests = json.loads(path.read_text())["requests"]
        seen.append({request["handled_by"] for request in requests})
    assert len(seen[0]) > 1 and len(seen[1]) == 1


@pytest.mark.slow
def test_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--workload", "mixed", "--set", "workload.num_requests=20", "--vmap-seeds", "2"]
    words += ["--set", "num_instances=2", "--set", f"routing_policy={folder / 'mine.py'}:tilted"]
    words += ["--grid", "routing.tilt=0,1000", "--output", str(folder / "out.zarr")]
    assert sweep(words) == 0
    assert "routing.tilt" in capsys.readouterr().out


@pytest.mark.slow
def test_compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = [f"even={folder / 'mine.yaml'}", f"first={folder / 'mine.yaml'}:routing.tilt=1000"]
    words = ["--num-seeds", "4", "--bootstrap", "99", "--output", str(folder / "out.json")]
    assert compare([*arms, *words]) == 0
    document = json.loads((folder / "out.json").read_text())
    (one,) = [
        each
        for each in document["comparisons"]
        if (each["metric"], each["class"]) == ("ttft_mean_ms", "all")
    ]
    assert one["difference"]["low"] > 0


@pytest.mark.slow
def test_optimize(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(folder / "mine.yaml"), "--output", str(folder / "found.json")]
    assert optimize([*words, "--calls", "4"]) == 0
    document = json.loads((folder / "found.json").read_text())
    assert "--policy-numbers" in document["cli_args"]
    assert 0 <= document["best"]["tilt"] <= 1000 if "best" in document else True


# the first instance goes down before anything arrives
OUTAGE = '''
from typing import Any
import jax.numpy as jnp
from blis_jax.policies import ClusterChange, cluster_policy, number, pytree

@pytree
class Numbers:
    """Which instance stops."""
    instance: Any = number(0, "instance", "which one", low=0, high=100)

@pytree
class Turn:
    """Changes made so far."""
    count: Any

@cluster_policy(
    Numbers,
    start=lambda params, shape: Turn(jnp.int32(0)),
    next_time=lambda params, state: jnp.where(state.count == 0, 1.0, jnp.inf),
)
def stops(params: Any, state: Any, context: Any) -> Any:
    """One instance goes down at once."""
    is_it = jnp.arange(context.is_up.shape[0]) == params.instance
    return ClusterChange(context.is_up & ~is_it, is_it, 0.0), Turn(state.count + 1)
'''


def test_run_takes_a_cluster_policy_and_its_number(tmp_path: Path) -> None:
    (tmp_path / "outage.py").write_text(OUTAGE)
    words = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "3"]
    words += ["--workload", "chatbot", "--num-requests", "12", "--rate", "20"]
    words += ["--cluster-policy", f"{tmp_path / 'outage.py'}:stops"]
    for number in ("0", "2"):
        path = tmp_path / f"{number}.json"
        given = [*words, "--policy-numbers", f"cluster.instance={number}"]
        assert run([*given, "--results-path", str(path)]) == 0
        requests = json.loads(path.read_text())["requests"]
        used = {request["handled_by"].removeprefix("instance_") for request in requests}
        assert used == {"0", "1", "2"} - {number}


@pytest.mark.slow
def test_compare_takes_a_cluster_policy_from_a_strategy_file(tmp_path: Path) -> None:
    (tmp_path / "outage.py").write_text(OUTAGE)
    text = TINY.replace(
        "routing_policy: weighted", "routing_policy: weighted, cluster_policy: 'outage.py:stops'"
    )
    (tmp_path / "mine.yaml").write_text(text)
    arms = [f"{n}={tmp_path / 'mine.yaml'}:cluster.instance={n}" for n in (0, 1)]
    words = ["--num-seeds", "2", "--bootstrap", "99", "--output", str(tmp_path / "out.json")]
    assert compare([*arms, *words]) == 0
    arms = json.loads((tmp_path / "out.json").read_text())["arms"]
    assert all(arm["settings"]["cluster_policy"].endswith("outage.py:stops") for arm in arms)


def test_an_unknown_cluster_policy_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "meta-llama/llama-3.1-8b-instruct", "--workload", "chatbot"]
    assert run([*words, "--cluster-policy", "outage"]) == 2
    assert (
        "use one of outages, outage-at, autoscaler, saturation-autoscaler, none, or path/to/file.py:Name"
        in capsys.readouterr().err
    )


TRACK_SCORERS = "cost-benefit:3,slo-headroom:2,kv-pressure:1"


def test_run_takes_the_routing_track_s_scorers_and_admission(tmp_path: Path) -> None:
    words = ["--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "3"]
    words += ["--workload", "chatbot", "--num-requests", "12", "--rate", "20"]
    words += ["--routing-policy", "weighted", "--routing-scorers", TRACK_SCORERS]
    words += ["--admission-policy", "predictive-slo", "--results-path", str(tmp_path / "r.json")]
    assert run(words) == 0
    assert len(json.loads((tmp_path / "r.json").read_text())["requests"]) == 12


@pytest.mark.slow
def test_sweep_takes_the_routing_track_s_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = "adaptive-weighted,kv-adaptive,epoch-adaptive"
    words = ["--workload", "mixed", "--set", "workload.num_requests=20", "--vmap-seeds", "2"]
    words += ["--set", "num_instances=2", "--grid", f"routing_policy={names}", "--all"]
    assert sweep([*words, "--output", str(tmp_path / "out.zarr")]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in names.split(","))


@pytest.mark.slow
def test_a_strategy_file_and_compare_take_the_routing_track_s_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TINY.replace("routing_policy: weighted", "routing_policy: adaptive-weighted")
    text = text.replace(
        "  routing_scorers.queue-depth: {categories: [1, 2], type: categorical}\n",
        "  prefix: {target: routing.standard_prefix}\n",
    )
    (tmp_path / "track.yaml").write_text(text)
    arms = [
        f"own={tmp_path / 'track.yaml'}",
        f"even={tmp_path / 'track.yaml'}:routing.standard_prefix=0.5",
    ]
    words = ["--num-seeds", "2", "--bootstrap", "99", "--output", str(tmp_path / "out.json")]
    assert compare([*arms, *words]) == 0
    arms = json.loads((tmp_path / "out.json").read_text())["arms"]
    assert {arm["settings"]["routing_policy"] for arm in arms} == {"adaptive-weighted"}
