"""Contexts of a router with many ties, as arrays for the policy and as JSON for Go."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import SLO_CLASSES, EngineShape, RequestView, Snapshots
from blis_jax.policies.contexts import GatewayContext
from blis_jax.policies.contract import NoParams, Policy

NUM_DRAWS, NUM_SCORERS = 24, 2
STUBS = Path(__file__).with_name("stubs.txt")


@dataclass(frozen=True)
class Cases:
    """Contexts `[case]` with vectors `[case, instance]`."""

    queue_depth: np.ndarray
    batch_size: np.ndarray
    in_flight: np.ndarray
    kv_utilization: np.ndarray
    free_kv_blocks: np.ndarray
    is_active: np.ndarray
    scores: np.ndarray  # [case, scorer, instance]
    weights: np.ndarray  # [case, scorer]
    input_len: np.ndarray
    slo_class: np.ndarray
    has_session: np.ndarray
    draws: np.ndarray  # [case, draw]


def cases_of(seed: int, count: int, size: int) -> Cases:
    """Draw contexts in which numbers are few, so that ties are many; some instances are not there."""
    rng = np.random.default_rng([seed, size])
    shape = (count, size)
    is_plain = rng.random((count, 1)) < 0.5  # half of the contexts have small numbers
    most = np.where(is_plain, 3, 40)
    is_active = rng.random(shape) < 0.85
    is_active[:, rng.integers(size)] = True
    kv = rng.choice([0.0, 0.0005, 0.3, 0.5, 0.8, 0.85, 0.9, 0.92, 0.95, 0.999], shape)
    share = rng.choice([0.0, 0.0, 0.1, 0.25, 0.5, 0.875, 1.0], (count, NUM_SCORERS, size))
    weights = rng.choice([1.0, 2.0, 3.0, 0.01], (count, NUM_SCORERS))
    return Cases(
        queue_depth=rng.integers(0, most, shape),
        batch_size=rng.integers(0, most, shape),
        in_flight=rng.integers(0, most, shape),
        kv_utilization=np.where(is_plain, kv, rng.random(shape)),
        free_kv_blocks=rng.integers(0, np.where(is_plain, 4, 60_000), shape),
        is_active=is_active,
        scores=np.where(is_plain[:, None], share, rng.random(share.shape)),
        weights=weights / weights.sum(axis=1, keepdims=True),
        input_len=rng.choice([0, 16, 300, 700, 1200, 4000], count),
        slo_class=rng.integers(0, len(SLO_CLASSES), count),
        has_session=rng.random(count) < 0.5,
        draws=rng.integers(0, 2**31, (count, NUM_DRAWS)),
    )


def decided(policy: Policy, cases: Cases) -> tuple[np.ndarray, np.ndarray]:
    """Return which instance a policy chooses `[case]`, and how many numbers it has drawn."""

    def one(row: dict[str, Any], infinity: jax.Array) -> tuple[jax.Array, jax.Array]:
        seen = row["queue_depth"]
        zero = jnp.zeros_like(seen)
        load = row["queue_depth"] + row["batch_size"] + row["in_flight"]
        context = GatewayContext(
            request=RequestView(row["slo_class"], row["input_len"], jnp.int64(0), *[jnp.int32(0)] * 3),
            num_prompt_blocks=jnp.int32(0), prompt_key=jnp.int32(0),
            snapshots=Snapshots(
                load, seen, row["batch_size"], row["in_flight"], row["kv_utilization"],
                row["free_kv_blocks"].astype(float),
                zero * 0.0, zero, jnp.int32(0), row["is_active"], zero,
            ),
            now_us=jnp.int64(7), key=None, block_size=jnp.int32(16),
            scorer_scores=row["scores"], scorer_shares=row["weights"],
            has_session=row["has_session"], draws=row["draws"],
        )  # fmt: skip
        state = policy.start(NoParams(), EngineShape(seen.shape[0], 1, 1, 0, 1))
        with runtime_infinity(infinity):
            chosen, state = policy.decide(NoParams(), state, context)
        return chosen, getattr(state, "used", jnp.int32(0))

    with jax.enable_x64(True):
        rows = {
            name: value.astype(np.int32) if value.dtype == np.int64 else value
            for name, value in vars(cases).items()
        }
        chosen, used = jax.jit(jax.vmap(one, in_axes=(0, None)))(rows, np.float64(np.inf))
        return np.asarray(chosen), np.asarray(used)


# --- Go -------------------------------------------------------------------------------------------


def by_go(
    go: str, programs: dict[str, str], cases: Cases, folder: Path
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return what each program, a whole `routing.go`, decides in Go: the instance `[case]`, and numbers drawn."""
    stubs, main = STUBS.read_text().split("// ---- main.go ----\n")
    (folder / "go.mod").write_text("module evolved\n\ngo 1.22\n")
    names = {name: f"p{place}" for place, name in enumerate(programs)}
    for name, text in programs.items():
        (folder / names[name]).mkdir(exist_ok=True)
        (folder / names[name] / "routing.go").write_text(text)
        (folder / names[name] / "stubs.go").write_text(stubs)
    imports = "\n".join(f'\t{short} "evolved/{short}"' for short in names.values())
    runs = "\n".join(f'\tout["{short}"] = run({short}.Decide)' for short in names.values())
    (folder / "main.go").write_text(main.replace("// IMPORTS", imports).replace("// RUNS", runs))
    lines = [json.dumps(_of_go(cases, case)) for case in range(len(cases.input_len))]
    (folder / "cases.json").write_text("\n".join(lines))
    done = subprocess.run(
        [go, "run", ".", "cases.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    answers = {}
    for name, short in names.items():
        rows = [np.flatnonzero(active) for active in cases.is_active]
        chosen = [row[place] for row, (place, _) in zip(rows, found[short], strict=True)]
        answers[name] = np.array(chosen), np.array([used for _, used in found[short]])
    return answers


def _of_go(cases: Cases, case: int) -> dict[str, Any]:
    active = np.flatnonzero(cases.is_active[case])
    fields = {
        "QueueDepth": cases.queue_depth, "BatchSize": cases.batch_size, "InFlightRequests": cases.in_flight,
        "KVUtilization": cases.kv_utilization, "FreeKVBlocks": cases.free_kv_blocks,
    }  # fmt: skip
    return {
        "snapshots": [
            {"ID": f"instance_{row}"}
            | {name: values[case, row].item() for name, values in fields.items()}
            for row in active
        ],
        "scores": cases.scores[case][:, active].tolist(),
        "weights": cases.weights[case].tolist(),
        "tokens": int(cases.input_len[case]),
        "class": SLO_CLASSES[cases.slo_class[case]],
        "session": "s" if cases.has_session[case] else "",
        "draws": cases.draws[case].tolist(),
    }
