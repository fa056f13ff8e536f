"""The measured runs and BLIS's own experiments, where they lie beside the checkout."""

import json
import zlib

import numpy as np
import pytest
import yaml

from blis_jax.cluster.config import ClusterConfig
from blis_jax.runs.closed_loop import simulate_closed_loop
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.spec import load_spec
from papers.real_servers import clusters
from papers.real_servers.designs import Fitter
from papers.real_servers.predict.collections import INFERENCEX, METRICS
from papers.real_servers.predict.learned import learned
from papers.real_servers.predict.simulation import LoopView
from papers.real_servers.step_fit import StepLaw, mean_steps, read_runs
from tests.support.recorded.reference_data import SHARED_DIR

POINTS = SHARED_DIR / "data" / "real_serving_runs" / "inferencex_vllm.csv"
REAL = SHARED_DIR / "data" / "real_serving_runs" / "vllm_runs.csv"
UPSTREAM = SHARED_DIR / "golden" / "blis_2026_08" / "upstream" / "trained_physics_iter29.json"


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_file(), reason=f"{REAL} is not here")
def test_a_workload_left_out_is_predicted():
    """Medians of docs/results/real-servers.md, for one workload."""
    runs = read_runs(REAL)
    assert len(runs) == 31 and sum(len(run.measured) for run in runs) == 609
    fitter = Fitter(runs, StepLaw(mean_steps(runs)))
    fit = fitter.fitted([run.name for run in runs if run.workload != "codegen"])
    errors = [
        one for run in runs if run.workload == "codegen" for one in fitter.errors(run.name, fit)
    ]
    medians = {
        name: np.median([one.percent for one in errors if one.figure == name]) for name in METRICS
    }
    assert medians["itl_mean"] < 4 and medians["e2e_mean"] < 4 and medians["ttft_mean"] < 6
    shipped = learned("vllm_runs", "fitted").beta
    np.testing.assert_allclose(fit.steps.beta, shipped, rtol=0.2)


def chance(text):
    return zlib.crc32(text.encode())


def is_kept_back(runs):
    """A sixth of the layouts, and of two in five of the others the upper or the lower concurrencies."""
    sides = clusters._side(runs)
    kept = []
    for run, side in zip(runs, sides, strict=True):
        is_side = side.endswith("upper" if chance(f"which {run.layout}") % 2 else "lower")
        has_side = chance(f"side {run.layout}") % 5 < 2
        kept.append(chance(run.layout) % 6 == 0 or (has_side and is_side))
    return kept


@pytest.mark.slow
@pytest.mark.skipif(not POINTS.is_file(), reason=f"{POINTS} is not here")
def test_rows_kept_back_lie_in_intervals_that_the_others_make():
    """Law, groups and widths have seen nothing of these rows, as on docs/results/real-servers.md."""
    runs = clusters.read_clusters(POINTS, INFERENCEX)
    is_kept = is_kept_back(runs)
    seen = [run for run, kept in zip(runs, is_kept, strict=True) if not kept]
    found = clusters.study(seen, LoopView()).learned
    errors, held = {}, {}
    for run in (run for run, kept in zip(runs, is_kept, strict=True) if kept):
        for one in clusters._predicted(run, found):
            low, high = found.interval(one.figure, one.predicted, run.scene)
            errors.setdefault(one.figure, []).append(one.percent)
            for kind in (*found.seen.unseen(run.scene), one.figure):
                held.setdefault(kind, []).append(low <= one.measured <= high)
    print({kind: (len(values), round(float(np.mean(values)), 3)) for kind, values in held.items()})
    print({name: round(float(np.median(values)), 2) for name, values in errors.items()})
    assert len(errors["tpot_mean"]) > 150
    assert np.median(errors["tpot_mean"]) < 8 and np.median(errors["ttft_mean"]) < 16
    assert len(held["other_concurrency"]) >= 60 and len(held["other_layout"]) >= 60
    assert all(np.mean(values) > 0.8 for values in held.values() if len(values) >= 30)


@pytest.mark.slow
@pytest.mark.skipif(not UPSTREAM.is_file(), reason=f"{UPSTREAM} is not here")
def test_blis_predicts_the_same_of_its_own_experiment(tmp_path):
    """Experiment 66, 1,200 requests of 23 users who wait for their answers: the sum of TTFT to the microsecond."""
    document = json.loads(UPSTREAM.read_text())
    (one,) = [one for one in document["experiments"] if one["id"] == "66"]
    path = tmp_path / "workload.yaml"
    path.write_text(yaml.safe_dump(one["workload"]))
    config = ClusterConfig(
        revision="blis-2026-08",
        latency_model="trained-physics",
        model=one["model"].lower(),
        hardware=one["hardware"],
        tp=one["tp"],
        max_num_running_reqs=one["max_num_seqs"],
        max_num_scheduled_tokens=one["max_num_batched_tokens"],
        total_kv_blocks=one["total_kv_blocks"],
        alpha_coeffs=tuple(document["alpha_coeffs"]),
        beta_coeffs=tuple(document["beta_coeffs"]),
    )
    run = simulate_closed_loop(config, drawn(load_spec(path, "blis-2026-08"), 42))
    requests, expected = run.record.requests, one["expected"]
    assert len(requests.ttft_us) == expected["completed_requests"]
    assert int(np.sum(requests.ttft_us)) == expected["ttft_sum_us"]
    assert np.mean(requests.e2e_us) / 1e3 == pytest.approx(expected["e2e_mean_ms"], rel=1e-9)
