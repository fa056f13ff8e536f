"""Fits to made-up servers whose law is known, designs, intervals, and tables."""

import numpy as np
import pytest

from blis_jax.latency.deployment import Deployment, gpu_description
from blis_jax.latency.model_description import model_description
from blis_jax.latency.served_physics import BETA, ServedNumbers, numbers_of, step_us
from papers.real_servers.designs import client_of, median_interval
from papers.real_servers.page import error_table, write_fits
from papers.real_servers.predict.collections import vllm_scene
from papers.real_servers.predict.figures import ClientView, seen
from papers.real_servers.predict.learned import usual_pace
from papers.real_servers.predict.scene import AskedCell
from papers.real_servers.predict.simulation import SimulatedRequests
from papers.real_servers.step_fit import (
    ABSENT,
    OPTIONAL,
    MeanStep,
    StepLaw,
    VllmRun,
    shortened,
    warm,
)
from papers.real_servers.widths import Error

TRUE = (1.0, 1.3, 80.0, 2.0, 15.0, 40.0, 40.0, 300.0, 1.8, 1.0)
PACE = 2.0


def mean_steps() -> list[MeanStep]:
    served = [
        Deployment(model_description(name), gpu_description(gpu), tp)
        for name, gpu, tp in (
            ("meta-llama/llama-3.1-8b-instruct", "H100", 1),
            ("meta-llama/llama-2-70b-hf", "H100", 4),
            ("meta-llama/llama-3.1-8b-instruct", "A100-80", 1),
        )
    ]
    found = []
    for place, deployment in enumerate(served):
        pace = PACE if deployment.gpu.name != "H100" else 1.0
        numbers = ServedNumbers(*numbers_of((*TRUE[:-1], pace), deployment))
        for decodes in (5.0, 30.0, 90.0):
            plain = step_us(numbers, 0.0, 0.0, 0.0, decodes, 700 * decodes)
            prompt = step_us(numbers, 1.0, 8.0, 8.0 * 500, decodes, 700 * decodes)
            time = float(plain + 0.2 * (prompt - plain))
            found.append(
                MeanStep(f"run {place}", deployment, time, decodes, 700 * decodes, 0.2, 8.0, 4000.0)
            )
    return found


def test_the_law_of_made_up_servers_is_found_and_priors_hold_the_rest():
    steps = mean_steps()
    law = StepLaw(steps)
    fit = law.fitted({"run 0", "run 1", "run 2"})
    measured = np.array([one.itl_us for one in steps])
    np.testing.assert_allclose(law.predicted_us(fit), measured, rtol=0.03)
    assert fit.pace["A100-80"] == pytest.approx(PACE, rel=0.15)
    without = law.fitted({"run 0", "run 1"})
    assert without.pace == {} and without.beta_on("A100-80")[-1] == usual_pace(
        gpu_description("A100-80")
    )
    nothing = law.fitted(set())
    np.testing.assert_allclose(nothing.beta, BETA)


def made_run(client: ClientView) -> tuple[VllmRun, SimulatedRequests]:
    row = {"run": "1-codegen", "model": "qwen/qwen3-14b", "hardware": "H100", "tp": 1}
    scene = shortened(vllm_scene(row), 100.0)
    arrival = np.linspace(0, 200, 400, endpoint=False)
    itl = np.where(arrival < 100, 10.0, 20.0)
    plain = SimulatedRequests(arrival, 15 + itl / 2, 15 + 250 * itl, itl, 247, np.zeros(400, int))
    found = seen(plain, client)
    measured, cells = {}, {}
    for stage, chosen in ((None, arrival >= 0), (0, arrival < 100), (1, arrival >= 100)):
        for name, values in (("ttft", found.ttft_ms), ("itl", found.itl_ms), ("e2e", found.e2e_ms)):
            cell = AskedCell(len(cells), "actual", f"{name}_mean", stage)
            cells[cell.figure, stage] = cell
            measured[cell] = float(values[chosen].mean())
    return VllmRun("1", "m", "codegen", "H100", scene, cells, measured, {}), plain


def test_the_client_of_a_made_up_run_is_found():
    run, plain = made_run(ClientView(5.0, 2.0, 0.95))
    found = client_of([run], {"1": plain})
    assert found.first_token_ms == pytest.approx(5.0, rel=0.1)
    assert found.first_token_steps == pytest.approx(2.0, rel=0.05)
    assert found.token_share == pytest.approx(0.95, abs=0.005)


def test_short_scenes_and_the_first_prompts():
    run, _ = made_run(ClientView())
    assert [stage.duration_s for stage in run.scene.load.stages] == [100.0, 100.0]
    assert warm(run.scene, np.array([8.7, 8.9])).tolist() == [False, True]  # 44 users at 5/s


def test_terms_that_predict_one_group_from_another_stay():
    """The made-up servers have a cost of each prompt and of logits; a law without both misses a model left out."""
    law = StepLaw(mean_steps())
    groups = {"run 0": "a", "run 1": "b", "run 2": "c"}
    absent = law.chosen_terms(set(groups), groups)
    assert absent < frozenset(OPTIONAL)
    fit = law.fitted(set(groups), {7})
    assert fit.beta[7] == pytest.approx(ABSENT) and fit.beta[6] > 1
    assert law.chosen_terms({"run 0"}, groups) == frozenset()


def test_the_median_of_errors_and_its_interval():
    errors = [Error(f"{n}", "ttft_mean", None, float(np.exp(n / 100)), 1.0) for n in range(19)]
    median, low, high = median_interval(errors)
    assert low < median < high and median == pytest.approx(100 * (np.exp(0.09) - 1))
    table = error_table([("mine", errors)])
    assert "| mine | 19 |" in table and "✓" in table


def test_fits_of_other_collections_stay_in_the_file(tmp_path):
    from papers.real_servers.predict.learned import learned

    path = tmp_path / "fits.yaml"
    path.write_text("other: {}\n")
    write_fits(path, {"vllm_runs": {"fitted": learned("vllm_runs", "fitted")}})
    text = path.read_text()
    assert text.startswith("# Fits") and "other: {}" in text and "vllm_runs:" in text
