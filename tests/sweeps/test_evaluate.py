"""JSON in, JSON out: answers, streams, batches, failures, and every way of asking wrongly."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.runs.many_runs import simulate
from blis_jax.workload.reference import draw
from sweeps.evaluate import evaluate, main
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import workload_of
from sweeps.search.objectives import Runs
from sweeps.search.request_schema import Answer, schema
from sweeps.strategies.arms import arm_of
from tests.support.evolve.tasks import PROGRAM
from tests.sweeps.busy import PRIORITY, write_strategies

METRICS = ["ttft_p99_ms[critical]", "throughput_tps"]
INLINE = yaml.safe_load(PRIORITY)


@pytest.fixture
def arms(tmp_path: Path) -> tuple[str, str]:
    return write_strategies(tmp_path)


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    return evaluate(INLINE, {"max_num_scheduled_tokens": 900}, metrics=METRICS)


def command(monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return main(list(words))


def test_figures_are_those_of_single_runs(answer: dict[str, Any], arms: tuple[str, str]) -> None:
    arm = arm_of(f"{arms[1]}:max_num_scheduled_tokens=900")
    assert arm.strategy is not None
    spec = workload_of(arm.strategy)
    tails = []
    for seed in (42, 57):
        requests = simulate(arm.config, draw(spec, seed, 16)[0]).requests
        tails.append(np.percentile(requests.ttft_us[requests.slo_class == 1], 99) / 1000)
    figure = answer["metrics"]["ttft_p99_ms[critical]"]
    assert [figure["per_seed"][0], figure["per_seed"][-1]] == pytest.approx(tails)
    assert figure["mean"] == pytest.approx(np.mean(figure["per_seed"]))
    assert figure["low"] < figure["mean"] < figure["high"] and figure["unit"] == "ms"


def test_an_answer_says_all_there_is_to_say(answer: dict[str, Any]) -> None:
    assert Answer.model_validate(answer).failure is None and answer["error"] is None
    assert list(answer["metrics"]) == METRICS
    assert answer["classes"]["critical"]["ttft_p99_ms"] == answer["metrics"][METRICS[0]]
    assert answer["classes"]["all"]["tokens_per_sec"] == answer["metrics"]["throughput_tps"]
    assert answer["score"] == answer["objectives"]["ttft_p99_ms[critical]"]
    assert answer["penalties"] == {} and answer["seeds"] == list(range(42, 58))
    assert {one["outcome"] for one in answer["outcomes"]} == {"COMPLETED"}
    assert answer["configuration"]["max_num_scheduled_tokens"] == 900
    assert answer["cli_args"][answer["cli_args"].index("--max-num-scheduled-tokens") + 1] == "900"
    assert answer["versions"]["profile"] == "blis-2026-02/scheduling"
    json.dumps(answer, allow_nan=False)


def test_the_same_question_in_other_words(answer: dict[str, Any], arms: tuple[str, str]) -> None:
    path = Path(arms[1])
    settings = {"max_num_scheduled_tokens": 900}
    others = [
        evaluate(path, settings=settings, metrics=METRICS),
        evaluate(arm=f"{path}:max_num_scheduled_tokens=900", metrics=METRICS),
        evaluate(
            INLINE, settings, metrics=METRICS, seeds=range(42, 58), workload=INLINE["workload"]
        ),
    ]
    for other in others:
        assert other["metrics"] == answer["metrics"]
        assert other["configuration"] == answer["configuration"]


def test_the_usual_metrics_and_own_targets(arms: tuple[str, str]) -> None:
    found = evaluate(arms[0], targets={"critical": {"ttft_ms": 1e9}, "sheddable": {"ttft_ms": 1.0}})
    assert {"all", "critical", "sheddable"} == set(found["classes"])
    assert found["classes"]["critical"]["slo_miss_rate"]["mean"] == 0
    assert found["classes"]["sheddable"]["slo_miss_rate"]["mean"] == 1
    assert found["targets"]["sheddable"] == {"ttft_ms": 1}


def test_a_point_of_the_library_and_what_is_outside_its_range() -> None:
    found = evaluate(
        "iter08_token_budget", {"max_tokens": 5000}, point="published", num_requests=60,
        seeds=[42], rng="jax", metrics=["ttft_mean_ms"],
    )  # fmt: skip
    assert found["configuration"]["slo_base_critical"] == 12.9382
    assert found["remarks"] == [
        "parameters.max_tokens: 5000 is outside the strategy's range, 768 to 4096"
    ]
    figure = found["metrics"]["ttft_mean_ms"]
    assert figure["mean"] is not None and figure["low"] is None and len(figure["per_seed"]) == 1
    assert found["num_requests"] == 60 and found["rng"] == "jax"


def test_a_stream_goes_on_after_a_refusal(
    arms: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {"strategy": arms[1], "metrics": METRICS}
    lines = [
        json.dumps({**request, "id": "a"}),
        "",
        json.dumps({**request, "id": 7, "paramters": {}}),
        "not json",
        json.dumps({**request, "id": "b", "settings": {"max_num_scheduled_tokens": 900}}),
    ]
    assert command(monkeypatch, "\n".join(lines), "--jsonl") == 2
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["id"] for answer in answers] == ["a", 7, None, "b"]
    assert [answer["error"] is None for answer in answers] == [True, False, False, True]
    assert answers[1]["error"].startswith("request: paramters: the key is unknown")
    assert "did you mean 'parameters'" in answers[1]["error"]
    assert answers[0]["score"] != answers[3]["score"]


def test_a_stream_runs_routers_of_files_in_one_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tables, plain = "load - exact_product(3.0, context.scores)", "load - 3.0 * context.scores"
    for name, score in (("one", tables), ("other", "-load"), ("plain", plain)):
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(score=score))
    arm = f"baseline:num_instances=3;routing_policy={tmp_path}/{{}}.py:route"
    asked = {"num_requests": 60, "seeds": [1, 2], "metrics": METRICS[1:]}
    lines = [json.dumps({"arm": arm.format(name), **asked}) for name in ("one", "other", "plain")]
    answers = []
    for words in (["--jsonl"], ["--jsonl", "--compile-programs"]):
        assert command(monkeypatch, "\n".join(lines), *words) == 0
        answers += [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    said = [answer.pop("remarks") for answer in answers]
    assert answers[:3] == answers[3:]
    assert said[:2] == [[], []] and said[2][0].startswith("compiled: the routing policy route")
    assert said[3:] == [[], [], []]


def test_a_stream_answers_before_the_next_line_is_there(
    arms: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    class Typist:
        """Writes its second line when the first is answered."""

        lines = (json.dumps({"strategy": arms[0], "metrics": METRICS}), "{}", "")

        def readline(self) -> str:
            seen.append(capsys.readouterr().out.count("\n"))
            line = self.lines[len(seen) - 1]
            return line + "\n" if line else ""

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdin", Typist())
    assert main(["--jsonl"]) == 2
    assert seen == [0, 1, 1]


def test_a_batch_is_run_together_and_answered_in_order(
    arms: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = Experiment.run

    def run(self: Experiment, configs: Sequence[ClusterConfig]) -> list[Runs]:
        calls.append(len(configs))
        return original(self, configs)

    monkeypatch.setattr(Experiment, "run", run)
    shared = {"strategy": arms[1], "metrics": METRICS}
    requests = [
        {**shared, "id": 0, "parameters": {"max_num_scheduled_tokens": 900}},
        {**shared, "id": 1, "parameters": {"max_num_scheduled_tokens": "many"}},
        {**shared, "id": 2},
    ]
    path = tmp_path / "batch.json"
    path.write_text(json.dumps({"requests": requests}))
    output = tmp_path / "answers.json"
    assert main([str(path), "--output", str(output)]) == 2
    answers = json.loads(output.read_text())["answers"]
    assert [answer["id"] for answer in answers] == [0, 1, 2] and calls == [2]
    assert answers[1]["error"] == (
        "requests[1]: parameter max_num_scheduled_tokens: got 'many', allowed is a number"
    )
    assert answers[0]["score"] != answers[2]["score"]
    assert main([str(path), "--output", str(output)]) == 2  # it exists
    assert json.loads(output.read_text())["answers"] == answers


def with_runs(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    original = Experiment.run
    monkeypatch.setattr(
        Experiment, "run", lambda self, configs: [change(runs) for runs in original(self, configs)]
    )


def test_failures_are_told_and_nothing_is_averaged_without_them(
    arms: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_runs(monkeypatch, lambda runs: (RunSummary(Outcome.LIVELOCK), *runs[1:]))
    found = evaluate(arms[1], metrics=METRICS)
    assert found["failure"]["code"] == "LIVELOCK" and found["failure"]["seeds"] == [42]
    assert "10,000 steps" in found["failure"]["message"]
    figure = found["metrics"]["ttft_p99_ms[critical]"]
    assert figure["mean"] is None and figure["per_seed"][0] is None and figure["per_seed"][1] > 0
    assert found["score"] == 1e6 and found["objectives"] is None
    assert found["outcomes"][0] == {"seed": 42, "outcome": "LIVELOCK"}


def test_an_objective_without_a_value_is_a_failure(
    arms: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(runs: Runs) -> Runs:
        metrics = {**runs[1].metrics, "ttft_p99_ms[critical]": math.nan}
        return (runs[0], RunSummary(Outcome.COMPLETED, metrics), *runs[2:])

    with_runs(monkeypatch, without)
    found = evaluate(arms[1], metrics=METRICS)
    assert found["failure"]["code"] == "NO_FIGURE" and found["failure"]["seeds"] == [43]
    assert "ttft_p99_ms[critical]" in found["failure"]["message"]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ("[]", "request: got [], allowed is an object"),
        ('{"strategy": "tiny", "strategy": "x"}', "strategy: the key is given twice"),
        ('{"strategy": "iter00_baseline", "num_requests": NaN}', "NaN is no JSON"),
        ({}, "request: strategy: missing, but it or arm must be given"),
        ({"strategy": "iter00_base"}, "did you mean 'iter00_baseline'"),
        ({"strategy": 3}, "request: strategy: got 3, allowed is a name"),
        ({"strategy": {"name": "a"}}, "strategy: objectives: there are none"),
        ({"strategy": {**INLINE, "seed": 3}}, "request: strategy: seed: the key is unknown"),
        ({"strategy": "iter00_baseline", "arm": "baseline"}, "arm: strategy is given too"),
        ({"arm": "nobody"}, "request: arm 'nobody': strategy 'nobody' is unknown"),
        ({"strategy": "iter00_baseline", "point": "best"}, "request: point 'best' is unknown"),
        ({"strategy": "iter08_token_budget", "parameters": {"max_token": 3}}, "'max_tokens'"),
        (
            {"strategy": "iter08_token_budget", "parameters": {"max_tokens": 3.5}},
            "request: parameter max_tokens: got 3.5, allowed is a whole number",
        ),
        (
            {"strategy": "iter08_token_budget", "parameters": {"max_tokens": -1}},
            "max_num_scheduled_tokens must be above 0",
        ),
        (
            {"strategy": "iter00_baseline", "settings": {"num_instance": 2}},
            "did you mean 'num_instances'",
        ),
        ({"strategy": "iter00_baseline", "settings": {"num_instances": "2"}}, "is not a whole"),
        ({"strategy": "iter00_baseline", "settings": {"alpha_coeffs": 3}}, "has the wrong type"),
        ({"strategy": "iter00_baseline", "seeds": [1, 1]}, "request: seeds: a seed is given twice"),
        ({"strategy": "iter00_baseline", "seeds": ["1"]}, "request: seeds[0]: got '1' (a text)"),
        ({"strategy": "iter00_baseline", "seeds": []}, "request: seeds: the list is empty"),
        ({"strategy": "iter00_baseline", "rng": "go"}, "request: rng: got 'go'"),
        ({"strategy": "iter00_baseline", "metrics": ["ttft"]}, "request: metrics[0]: metric 'ttft'"),
        ({"strategy": "iter00_baseline", "workload": "mixd"}, "request: workload: 'mixd' is neither"),
        ({"strategy": "iter00_baseline", "workload": {"version": "2"}}, "request: workload: "),
        ({"strategy": "iter00_baseline", "num_requests": 0}, "request: num_requests: got 0"),
        (
            {"strategy": "iter00_baseline", "targets": {"urgent": {"ttft_ms": 3}}},
            "request: targets.urgent: ",
        ),
        (
            {"strategy": "iter00_baseline", "targets": {"critical": {"ttft": 3}}},
            "targets.critical.ttft: the key is unknown; use ttft_ms",
        ),
    ],
)  # fmt: skip
def test_refusals_are_answers_with_one_sentence(
    request_: Any, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = request_ if isinstance(request_, str) else json.dumps(request_)
    assert command(monkeypatch, text) == 2
    found = json.loads(capsys.readouterr().out)
    assert problem in found["error"] and "\n" not in found["error"]
    assert found["metrics"] is None and Answer.model_validate(found)
    if isinstance(request_, dict) and {"strategy", "arm"} & set(request_):
        with pytest.raises((ConfigError, TypeError)):
            evaluate(**request_)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere.json"], "nowhere.json does not exist"),
        (["--jsonl", "--output", "a.json"], "--output: --jsonl answers on standard output"),
        (["--output", "a.txt"], "must end in .json"),
        (["--json"], "unknown option '--json'; did you mean '--jsonl'?"),
    ],
)
def test_wrong_options(
    words: list[str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, "{}", *words) == 2
    assert problem in capsys.readouterr().err


def test_the_schema_is_that_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schema"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == schema() and set(document["properties"]) == {
        "request", "batch", "answer", "answers",
    }  # fmt: skip
    parts = document["$defs"]
    assert set(parts["Request"]["properties"]) > {"strategy", "arm", "parameters", "seeds", "id"}
    assert parts["Answer"]["properties"]["failure"]["anyOf"][0]["$ref"] == "#/$defs/FailureAnswer"


# --- the page of a batch --------------------------------------------------------------------------


def batch_of(*requests: dict[str, Any]) -> str:
    usual = {"strategy": INLINE, "seeds": [42, 43], "metrics": METRICS}
    return json.dumps({"requests": [usual | one for one in requests]})


def test_a_batch_is_compared_with_its_first_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from blis_jax.reports.study import SEEDS, WINDOWS
    from sweeps.search.answering import study_of

    shorter = {"id": "shorter", "parameters": {"max_num_scheduled_tokens": 900}}
    text, page = batch_of({"id": "usual"}, shorter), tmp_path / "page.html"
    assert command(monkeypatch, text, "--report", str(page)) == 0
    said = capsys.readouterr()
    assert "written: " in said.err and "Does shorter beat usual in" in page.read_text()
    answers = json.loads(said.out)["answers"]
    study = study_of(answers, SEEDS, "the command")
    (critical,) = [one for one in study.differences if one.slo_class == "critical"]
    before, after = (answer["metrics"][METRICS[0]]["mean"] for answer in answers)
    assert critical.change.absolute.mean == pytest.approx(after - before)
    assert (critical.change.first_mean, critical.change.num_pairs) == (pytest.approx(before), 2)
    assert study.strategies == ("usual", "shorter") and study.notes == ()
    assert study_of(answers, WINDOWS, "").runs.many == "windows"
    answers[1]["seeds"] = [42, 44]
    with pytest.raises(ConfigError, match=r"requests\[1\] has other seeds than requests\[0\]"):
        study_of(answers, SEEDS, "")


def test_a_page_needs_a_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page = str(tmp_path / "page.html")
    for text in (json.dumps({"strategy": INLINE}), batch_of({})):
        assert command(monkeypatch, text, "--report", page) == 2
        assert "one request is no comparison" in capsys.readouterr().err
    assert command(monkeypatch, batch_of({}, {}), "--jsonl", "--report", page) == 2
    assert "--jsonl answers each by itself" in capsys.readouterr().err
