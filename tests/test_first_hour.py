"""A stranger's first hour: five jobs, each of a few commands, whose right answers are known beforehand.

What a user must see is in the first lines that a command prints.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import blis_jax
from blis_jax.__main__ import main

FIRST = 10  # lines
MOST_COMMANDS = 6
SERVER = {"beta0": 7500.0, "beta1": 30.0, "beta2": 60.0}  # µs, of the made-up server
POLICIES = '''
import jax.numpy as jnp
from typing import Any
from blis_jax.policies import (
    admission_policy, is_sheddable, number, pytree, routing_policy, scheduler,
)

@pytree
class Gate:
    """How much load closes the gate."""
    most: Any = number(2.0, "requests", "open requests from which sheddable ones go", low=0, high=50)

@admission_policy(Gate)
def gate(params, state, context):
    """Refuse sheddable requests under load."""
    load = jnp.mean(context.snapshots.effective_load)
    return ~(is_sheddable(context.request.slo_class) & (load > params.most)), state

@scheduler()
def shortest(params, state, context):
    """The shortest prompt first."""
    return (context.request.input_len, context.request.queue_rank), state

@routing_policy()
def pile(params, state, context):
    """Everything to the first instance: the worst there is."""
    return jnp.argmax(context.snapshots.is_active), state
'''  # fmt: skip


class Terminal:
    """A user's folder, and what the commands typed there printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.num_commands = capsys, 0

    def type(self, *words: str) -> str:
        """Run a command that must work; return its first lines, joined, and keep all of them."""
        self.num_commands += 1
        assert self.num_commands <= MOST_COMMANDS
        code = main(list(words))
        printed = self.capsys.readouterr()
        self.said, self.lines = printed.err, printed.out.splitlines()
        assert code == 0, printed.err
        return " ".join(" ".join(self.lines[:FIRST]).split())


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys)


def _write_trace(path: str, gap_s: float, prompts: list[int], outputs: int) -> None:
    rows = (f"{at * gap_s:.4f},{tokens},{outputs}" for at, tokens in enumerate(prompts))
    Path(path).write_text(
        "\n".join(["timestamp,prompt_tokens,completion_tokens", *rows]), encoding="utf-8"
    )


def test_an_own_trace_on_a100s(terminal: Terminal) -> None:
    """Long prompts alternate with short ones: dealt in turn, one of two instances gets all that is long.

    The second trace has a prompt of one full step each 45 ms. On an A100 the published fit makes that step last
    16,442 + 2,048 · 47.837 µs = 114.4 ms, and 114.4 ÷ 45 is between 2 and 3: three instances are the fewest.
    """
    _write_trace("alternating.csv", 0.13, [6000, 100] * 150, 4)
    _write_trace("even.csv", 0.045, [2048] * 1280, 1)
    fewest = math.ceil((16_441.53 + 2048 * 47.837412) / 45_000)

    terminal.type("traces", "alternating.csv")
    assert "columns read: timestamp, prompt_tokens, completion_tokens" in " ".join(
        " ".join(terminal.lines).split()
    )
    assert "times are read as s" in terminal.said
    first = terminal.type(
        "compare", "--trace", "alternating.csv", "--routers", "round-robin,least-loaded",
        "vllm:num_instances=2;gpu=NVIDIA-A100-SXM4-80GB", "--figure", "none",
    )  # fmt: skip
    assert "2 instances × 1 A100-80 = 2 GPUs; budget 2,048 tokens" in first  # vLLM's on that GPU
    assert "Verdict: least-loaded is best on this trace" in first
    assert "round-robin falls behind" in " ".join(terminal.lines)
    first = terminal.type(
        "capacity", "even.csv", "--trace-windows", "64", "--gpus", "A100-80", "--policy", "vllm",
        "--targets", "all.ttft_ms=200@90", "--max-instances", "8", "--figure", "none",
    )  # fmt: skip
    assert fewest == 3
    assert f"vllm needs {fewest} instances × 1 A100-80 = {fewest} GPUs; 2 are too few" in first


@pytest.mark.slow
@pytest.mark.lenient_promotion  # as for a user, who adds counts to weights
def test_own_policies(terminal: Terminal) -> None:
    """Everything on one of four instances is worse; a gate serves critical requests sooner and refuses others."""
    Path("mine.py").write_text(POLICIES, encoding="utf-8")
    base, few = (
        "vllm:num_instances=4",
        ("--seeds", "8", "--num-requests", "150", "--figure", "none"),
    )
    first = terminal.type("compare", base, f"pile={base};routing_policy=mine.py:pile", *few)
    assert "router round-robin" in first and "pile: router pile." in first
    assert "Verdict: worse: critical +" in first
    settings = "admission_policy=mine.py:gate;scheduler=mine.py:shortest"
    first = terminal.type(
        "compare", base, f"mine={base};{settings}", *few, "--metrics", "ttft_mean_ms,reject_rate",
        "--output", "gate.json",
    )  # fmt: skip
    found = json.loads(Path("gate.json").read_text(encoding="utf-8"))["comparisons"]
    verdicts = {(one["class"], one["metric"]): one["verdict"] for one in found}
    assert verdicts["critical", "ttft_mean_ms"] == "better"
    assert verdicts["sheddable", "reject_rate"] == "worse"
    assert "Verdict: better: critical" in first


def _token_times(
    arrival: np.ndarray, prompts: np.ndarray, outputs: np.ndarray
) -> list[list[float]]:
    """Serve requests in batches of 128 and 2,048 tokens, without the simulator; return when each token came, µs."""
    waiting, running = list(range(len(arrival))), list[int]()
    left, tokens = prompts.tolist(), [list[float]() for _ in arrival]
    now = 0.0
    while waiting or running:
        if not running and arrival[waiting[0]] > now:
            now = float(arrival[waiting[0]])
        room, prefill, decode, step = 2048, 0, 0, list[tuple[int, int]]()
        running += [one for one in waiting if arrival[one] <= now][: 128 - len(running)]
        for request in running:
            share = min(left[request], room) if left[request] else min(1, room)
            prefill, decode = (
                (prefill + share, decode) if left[request] else (prefill, decode + share)
            )
            room -= share
            step += [(request, share)] * (share > 0)
        now += SERVER["beta0"] + SERVER["beta1"] * prefill + SERVER["beta2"] * decode
        served = {request for request, _ in step}
        running = [one for one in running if one in served or left[one] < prompts[one]]
        waiting = [one for one in waiting if one not in served]
        for request, share in step:
            left[request] -= share if left[request] else 0
            tokens[request] += [now] * (left[request] == 0)
        running = [one for one in running if len(tokens[one]) < outputs[one]]
    return tokens


def _serve(path: str, num_requests: int = 160) -> np.ndarray:
    """Write what `vllm bench serve --save-detailed` would of the made-up server; return TTFT in ms."""
    random = np.random.default_rng(1)
    arrival = np.cumsum(random.exponential(90_000, num_requests)).round()
    arrival -= arrival[0]
    prompts, outputs = (random.integers(*ends, num_requests) for ends in ((50, 1500), (10, 90)))
    tokens = _token_times(arrival, prompts, outputs)
    ttft = (np.array([times[0] for times in tokens]) - arrival) / 1e6
    document = {
        "backend": "vllm", "model_id": "made-up", "num_prompts": num_requests, "request_rate": 11.0,
        "completed": num_requests, "failed": 0, "duration": max(times[-1] for times in tokens) / 1e6,
        "total_input_tokens": int(prompts.sum()), "total_output_tokens": int(outputs.sum()),
        "request_throughput": 11.0, "mean_ttft_ms": float(1e3 * ttft.mean()),
        "start_times": (arrival / 1e6).tolist(), "input_lens": prompts.tolist(),
        "output_lens": outputs.tolist(), "ttfts": ttft.tolist(),
        "itls": [(np.diff(times) / 1e6).tolist() for times in tokens], "errors": [""] * num_requests,
    }  # fmt: skip
    Path(path).write_text(json.dumps(document), encoding="utf-8")
    return 1e3 * ttft


@pytest.mark.slow
def test_a_result_of_vllm_bench_serve(terminal: Terminal) -> None:
    """The constants of the made-up server are found, and a replay on the fitted server has its latencies."""
    ttft_ms = _serve("vllm.json")
    first = terminal.type(
        "calibrate", "vllm.json", "--max-num-seqs", "128", "--max-num-batched-tokens", "2048",
        "--output", "fit.json",
    )  # fmt: skip
    assert "Verdict: the fit describes its run" in first and "another unit" not in terminal.said
    values = json.loads(Path("fit.json").read_text(encoding="utf-8"))["coefficients"]
    for name, true in SERVER.items():
        assert values[name]["value"] == pytest.approx(true, rel=0.03)
    first = terminal.type(
        "compare", "--trace", "vllm.json", "one=vllm:num_instances=1", "two=vllm:num_instances=2",
        "--coefficients-from", "fit.json", "--draws", "2", "--figure", "none", "--output", "out.json",
    )  # fmt: skip
    assert "Verdict: on this trace: all requests −" in first
    found = json.loads(Path("out.json").read_text(encoding="utf-8"))["comparisons"]
    (entry,) = [one for one in found if (one["class"], one["metric"]) == ("all", "ttft_mean_ms")]
    assert entry["reference_mean"] == pytest.approx(ttft_ms.mean(), rel=0.03)


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command says comes back as text, numbers with units and a picture."""
    monkeypatch.chdir(tmp_path)
    assert "compare" in dir(blis_jax)
    result = blis_jax.compare(
        "vllm:num_instances=2", "vllm:num_instances=6", seeds=8, num_requests=150
    )
    assert result.verdict.startswith("better: critical −")
    frame = result.to_dataframe()
    assert frame[frame["metric"] == "TTFT mean, ms"]["verdict"].eq("better").all()
    assert "<svg" in result._repr_html_() and result.plot().axes
    assert not list(tmp_path.iterdir())  # nothing is written unasked


def test_llm_d(terminal: Terminal) -> None:
    """llm-d's own router needs no code: every part of it is there already; a policy of ours needs some."""
    first = terminal.type("promote", "maps", "llm-d-default", "--output", "own")
    assert "of llm-d-default, what is there with equal results: " in first
    assert "needs a plugin" not in first
    Path("mine.py").write_text(POLICIES, encoding="utf-8")
    terminal.type(
        "promote", "maps", "mine=llm-d-default:scheduler=mine.py:shortest", "--output", "mine"
    )
    terminal.type("promote", "status", "--output", "mine")
    assert "against llm-d-default for llm-d-router@" in " ".join(" ".join(terminal.lines).split())
    first = terminal.type("promote", "maps", "iter13_class_lead@found", "--output", "ours")
    assert "what needs a plugin that is generated: " in first
