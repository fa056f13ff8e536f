"""Fits to made-up closed loops: groups, what is left out, intervals, and which layout wins."""

import dataclasses
import math

import numpy as np
import pytest

from blis_jax.latency.served_physics import BETA
from papers.real_servers import clusters, designs, loop_fit, page
from papers.real_servers.loop_fit import LoopPosterior
from papers.real_servers.predict.figures import NOTHING
from papers.real_servers.predict.learned import (
    Learned,
    SeenRuns,
    factor,
    from_document,
    layout_key,
    to_document,
)
from papers.real_servers.predict.scene import ClosedLoad, RealServer, Scene, ServerPool
from papers.real_servers.predict.simulation import LoopView, simulated_loop
from papers.real_servers.widths import Error, few, in_half_widths

POOLS = (ServerPool("prefill", 1, 1), ServerPool("decode", 2, 1))


def scenes(names=("qwen/qwen3-14b", "meta-llama/llama-3.1-8b-instruct")):
    return [
        Scene(RealServer(name, "H100", tp), ClosedLoad(many, 200, 20, rounds=3))
        for name in names
        for tp in (1, 2)
        for many in (1, 4, 16)
    ]


def test_effects_of_groups_are_found_and_others_are_not_touched():
    runs = scenes()
    errors = np.zeros(2 * len(runs))
    errors[len(runs) :] = [0.3 if "qwen" in one.server.model else 0.0 for one in runs]
    found = LoopPosterior(runs, errors).effects()
    assert factor(found, "itl", runs[0]) == pytest.approx(math.exp(0.3), rel=0.03)
    assert factor(found, "itl", runs[-1]) == pytest.approx(1.0, abs=0.03)
    assert factor(found, "ttft", runs[0]) == 1.0
    other = Scene(RealServer("a/b", "L40S", 1), runs[0].load)
    assert 1.0 < factor(found, "itl", other) < 1.2  # what all have in common


def test_left_out_runs_are_predicted_as_by_a_fit_without_them():
    runs = scenes()
    rng = np.random.default_rng(1)
    errors, slopes = rng.normal(0, 0.2, 2 * len(runs)), rng.normal(0, 0.1, (2 * len(runs), 2))
    posterior = LoopPosterior(runs, errors, slopes)
    names = [one.server.model for one in runs]
    out = np.tile([name.startswith("qwen") for name in names], 2)
    noise = np.linalg.inv(posterior.inverse) - posterior.prior
    known = (posterior.prior + noise)[np.ix_(~out, ~out)]
    expected = posterior.prior[np.ix_(out, ~out)] @ np.linalg.solve(known, errors[~out])
    np.testing.assert_allclose(posterior.left_out(names)[out], expected, atol=1e-9)
    nothing = np.zeros_like(errors)
    assert (LoopPosterior(runs, nothing, slopes).coefficients() == 0).all()


def test_the_law_of_made_up_loops_is_found():
    runs = scenes()
    true = (BETA[0], BETA[1], 2 * BETA[2], *BETA[3:])
    measured = np.array(
        [
            (one.ttft_ms.mean(), one.itl_ms.mean())
            for one in (simulated_loop(run, true, LoopView(entry_ms=60.0)) for run in runs)
        ]
    )
    law = loop_fit.LoopLaw(runs, measured.T.ravel(), LoopView())
    before = np.abs(law.linear(law.prior)[0])
    logs, found = loop_fit.fitted(law)
    posterior = LoopPosterior(runs, law.errors(found))
    after = np.abs(posterior.errors - posterior.left_out(map(layout_key, runs)))
    assert np.median(after) < 0.25 * np.median(before)
    fit = law.fit_of(logs)
    assert fit.beta[2] > BETA[2] and fit.view.entry_ms > loop_fit.ENTRY_MS
    slopes = law.linear(law.prior)[1]
    assert (slopes[len(runs) :, 0] > 0).all() and slopes.shape == (2 * len(runs), len(law.prior))
    moved = law.prior + loop_fit.STEP * np.eye(len(law.prior))[2]
    change = law.linear(law.prior)[0] - law.linear(moved)[0]
    np.testing.assert_allclose(slopes[:, 2], change / loop_fit.STEP * law.sd[2])
    near = loop_fit.LoopLaw(runs, measured.T.ravel(), LoopView(), fit)
    np.testing.assert_allclose(near.prior, logs)


def run(many, number=1, pools=()):
    scene = Scene(
        RealServer("qwen/qwen3-14b", "H100", num_instances=number, pools=pools),
        ClosedLoad(many, 100, 11),
    )
    name = f"{layout_key(scene)}, {many} at once"
    return clusters.ClusterRun(name, layout_key(scene), scene, {}, {})


def test_halves_and_layouts():
    runs = [run(many, number) for number in (1, 2) for many in (8, 1, 64)]
    assert clusters.halves(runs) == ["second", "first", "first", "first", "second", "second"]
    alike = clusters._pools_alike
    assert (
        alike(run(1, 3, POOLS)) == "3 instances in pools, TP 1" and alike(runs[0]) == runs[0].layout
    )


def test_rows_are_kept_apart_whole_layouts_once():
    """Every layout is kept apart as a whole in one study, parts of others beside it, and most rows stay."""
    runs = [run(many, number) for number in range(1, 41) for many in (1, 4, 16, 64)]
    studies = [clusters.kept_apart(runs, fold) for fold in range(clusters.FOLDS)]
    rows = np.array(studies).reshape(clusters.FOLDS, 40, 4)
    assert (rows.all(axis=2).sum(axis=0) >= 1).all() and 0.2 < np.mean(studies) < 0.5
    parts = {tuple(kept) for study in rows.tolist() for kept in study}
    assert {(True, True, False, False), (False, False, True, True)} <= parts
    assert (True, False, True, False) in parts or (False, True, False, True) in parts


def test_a_study_without_some_rows_says_how_far_they_lie_in_its_half_widths():
    known = SeenRuns.of([run(8).scene])
    fit = Learned(BETA, {}, NOTHING, known, {"tpot_mean": {"same": 0.1, "other_layout_pools": 0.4}})
    error = Error("a", "tpot_mean", None, 10 * math.exp(0.15), 10.0)
    far = in_half_widths(error, fit, run(8).scene)
    assert far is not None and far.size == pytest.approx(1.5)
    assert (far.kind, far.group) == ("same", layout_key(run(8).scene))
    assert in_half_widths(error._replace(figure="req_s"), fit, run(8).scene) is None
    both = Scene(RealServer("a/b", "L40S"), run(8).scene.load)
    assert in_half_widths(error, fit, both) is None


def test_what_is_left_out_says_which_kind_of_row_it_is():
    runs = [run(many, number) for number in (1, 2) for many in (8, 1, 64)]
    assert clusters._side(runs)[:3] == [f"{runs[0].layout}  lower"] * 2 + [
        f"{runs[0].layout}  upper"
    ]
    near = [run(many) for many in (8, 4, 16)]
    kinds = ["other_concurrency", "other_layout", "other_concurrency"]  # 4 is far from 16
    assert clusters._kinds(near, clusters._side(near)) == kinds
    assert set(clusters._kinds(runs, [one.layout for one in runs])) == {"other_layout"}
    assert clusters._kinds(runs, clusters.halves(runs)).count("same") == 2  # 8, between 1 and 64
    assert set(clusters._kinds(runs, [one.name for one in runs])) == {"same", "other_layout"}


KIND_OF = {
    "same": run(16).scene,
    "other_concurrency": run(64).scene,
    "other_layout": run(8, 2).scene,
    "other_deployment": run(8, 3, POOLS).scene,
    "other_software": Scene(RealServer("qwen/qwen3-14b", "H100", variant="2"), run(8).scene.load),
    "other_model": Scene(RealServer("a/b", "H100"), run(8).scene.load),
    "other_hardware": Scene(RealServer("qwen/qwen3-14b", "L40S"), run(8).scene.load),
}


def test_intervals_by_what_was_not_seen():
    halves = {kind: 0.125 * (n + 1) for n, kind in enumerate(KIND_OF)}
    known = SeenRuns.of([run(8).scene, run(32).scene])
    fit = Learned(BETA, {}, NOTHING, known, {"tpot_mean": halves})
    assert from_document(to_document(fit)) == fit
    for place, (kind, scene) in enumerate(KIND_OF.items()):
        assert known.unseen(scene) == (kind,)
        low, high = fit.interval("tpot_mean", 10.0, scene)
        assert math.log(high / 10) == pytest.approx(0.125 * (place + 1))
        assert low * high == pytest.approx(100)
    assert [known.unseen(run(many).scene) for many in (3, 4, 65)] == [
        ("other_layout",), ("other_concurrency",), ("other_layout",)
    ]  # fmt: skip
    both = Scene(RealServer("a/b", "L40S"), run(8).scene.load)
    assert known.unseen(both) == ("other_model", "other_hardware")
    _, high = fit.interval("tpot_mean", 10.0, both)
    assert math.log(high / 10) == pytest.approx(math.hypot(0.75, 0.875))


def test_a_far_row_has_no_narrower_interval_than_a_near_one():
    known = SeenRuns.of([run(8).scene])
    fit = Learned(BETA, {}, NOTHING, known, {"tpot_mean": {"same": 0.3, "other_deployment": 0.2}})
    halves = [
        math.log(fit.interval("tpot_mean", 1.0, KIND_OF[kind])[1])
        for kind in ("other_concurrency", "other_deployment")
    ]
    assert halves == pytest.approx([0.3, 0.3])
    own = dataclasses.replace(fit, errors={"tpot_mean": {"other_deployment_pools": 0.5}})
    _, high = own.interval("tpot_mean", 10.0, run(8, 3, POOLS).scene)
    assert math.log(high / 10) == pytest.approx(0.5)
    assert math.isnan(own.interval("tpot_mean", 10.0, run(8).scene)[0])
    assert math.isnan(fit.interval("e2e_mean", 10.0, run(8).scene)[0])


def test_which_layout_wins():
    def error(name, predicted, measured):
        return Error(name, "req_s", None, predicted, measured)

    errors = [error("a", 1.0, 1.0), error("b", 2.0, 2.0), error("c", 4.0, 1.5), error("d", 1, 1.01)]
    found = designs.agreement(
        errors, {name: name for name in "abcd"}, half=dict.fromkeys("abcd", 0.6)
    )
    assert found.layouts == 4 and found.pairs == 5  # a and d measured the same
    assert found.right == 0.8 and found.low < 0.8 <= found.high
    assert found.decided == 0.4 and found.decided_right == 1.0
    nothing = designs.agreement(errors[:1], {"a": "a"}, {"a": 0.1})
    assert nothing.pairs == 0 and math.isnan(nothing.right)


def test_tables_of_a_made_up_study():
    runs = [run(8, number) for number in (1, 2, 3)] + [run(8, 3, POOLS)]
    errors = [
        Error(one.name, name, None, 1.1 * (n + 1.0), n + 1.0, "other_layout", one.layout)
        for n, one in enumerate(runs)
        for name in page.RANKED
    ]
    study = clusters.ClusterStudy(
        Learned(BETA, {}, NOTHING, SeenRuns(), {}), runs, {"one layout": errors}
    )
    text = page.llmd_tables(study)
    apart = [[one._replace(predicted=math.exp(2.0), measured=1.0) for one in errors]]
    with_apart = page.kind_table(errors, apart=apart)
    assert "| of figures kept apart, before and after widening |" in with_apart
    assert "| 4: 0, 0 % |" in with_apart and "| 16: 0, 0 % |" in with_apart
    words = page.KIND_WORDS["other_layout"]
    width = 100 * (1.1 ** few(3) - 1)
    assert f"| {words} | req_s | 3 | 3 | 10.0 [10.0, 10.0] | 10 | {width:.0f} | 100 % |" in text
    assert f"| {words} | all of these | 12 |  |  |  |  | 100 % [100, 100] |" in text
    assert f"| {words} | tpot_mean | 1 | 1 | 10.0 [10.0, 10.0] | 10 |  |  |" in text
    assert "| 8 | 4, all | e2e_mean | 6 | 100 [100, 100] |" in text
    assert "| 8 | 0, 16 GPUs | req_s | 0 |" in text
    assert [page.num_gpus(one) for one in runs] == [1, 2, 3, 3]
