"""Strategy files: forms, errors with the path of the key, the library, the reference's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.router import weights_of
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.policies.their_names import ours
from sweeps.runs.requests import workload_of
from sweeps.search.engines import make
from sweeps.search.objectives import Valuation
from sweeps.strategies.file import list_library, load_strategy, parse_strategy
from sweeps.strategies.space import Space, space_of
from sweeps.sweep.plan import make_plan
from tests.support.recorded.reference_data import SHARED_DIR

REFERENCE = SHARED_DIR / "data" / "blis_reference" / "strategy_pr452"
PLAIN = """
name: plain
mechanism: {routing_policy: weighted, num_instances: 2}
objectives: [{metric: ttft_p99_ms}]
"""
THEIRS = """
name: theirs
fixed_args: [--num-instances, "4", --routing-policy, weighted, --slo-priority-bridge,
             --model, meta-llama/llama-3.1-8b-instruct, --num-requests, "500"]
parameters:
  - {name: critical, flag: --slo-base-critical, type: real, low: 5.0, high: 20.0}
  - {name: chunk, flag: --long-prefill-token-threshold, type: integer, low: 64, high: 512}
  - {name: scorers, flag: --routing-scorers, type: categorical, categories: ["queue-depth:1"]}
workload_spec: "workload.yaml"
objective: {metric: ttft_p99_ms, direction: min}
constraints:
  - {metric: throughput_tps, direction: max, threshold: 5000, weight: 10}
"""


def space(text: str) -> Space:
    return space_of(parse_strategy(PLAIN + text, "mine.yaml"))


def test_long_and_short_forms_say_the_same() -> None:
    in_short = space(
        "parameters: {slo_base_critical: [5, 20], max_num_scheduled_tokens: [64, 128]}"
    )
    at_length = space(
        "parameters:\n"
        "- {name: slo_base_critical, target: slo_base_critical, type: real, low: 5, high: 20}\n"
        "- max_num_scheduled_tokens: [64, 128]\n"
    )
    assert in_short.dimensions == at_length.dimensions
    assert [one.kind for one in in_short.dimensions] == ["real", "integer"]


def test_flags_and_arguments_of_the_reference() -> None:
    strategy = parse_strategy(THEIRS, "theirs.yaml")
    found = space_of(strategy)
    assert found.base.num_instances == 4 and found.base.slo_priority_bridge
    assert found.num_requests == 500
    assert strategy.workload == "workload.yaml" and strategy.penalties == "each-seed"
    config = found.config_at((7.123456789, 100, "queue-depth:1"))
    assert config.slo_base_critical == 7.123457  # as their script writes it
    assert config.long_prefill_token_threshold == 100
    assert config.scorers() == [("queue-depth", 1.0)]


@pytest.mark.parametrize("name", ["iter1-strategy.yaml", "strategy_template.yaml"])
def test_files_of_the_reference_load_unchanged(name: str) -> None:
    if not REFERENCE.is_dir():
        pytest.skip("no files of the reference beside this checkout")
    found = space_of(load_strategy(str(REFERENCE / name)))
    assert found.base.num_instances == 8
    assert len(found.dimensions) == {"iter1-strategy.yaml": 7, "strategy_template.yaml": 3}[name]


def test_scorer_weights_are_parameters() -> None:
    config = space("parameters: {routing_scorers.queue-depth: [0.5, 4]}").config_at((1.25,))
    assert dict(config.scorers()) == {
        "prefix-affinity": 3.0,
        "queue-depth": 1.25,
        "kv-utilization": 2.0,
    }


def test_overrides_apply_where_they_match() -> None:
    found = space(
        "parameters: {slo_prefill_critical: [0, 64]}\n"
        "overrides: [{when: {slo_prefill_critical: 0}, settings: {slo_prefill_sheddable: 7}}]"
    )
    assert found.config_at((0,)).slo_prefill_sheddable == 7
    assert found.config_at((1,)).slo_prefill_sheddable == 0


def test_values_reach_both_ends_and_every_category() -> None:
    (real,) = space(
        "parameters: [{name: a, target: slo_age_weight, low: 1.0e-6, high: 1e-4, prior: log-uniform}]"
    ).dimensions
    assert real.at(0.0) == pytest.approx(1e-6) and real.at(1.0) == pytest.approx(1e-4)
    assert real.at(0.5) == pytest.approx(1e-5)
    (choice,) = space(
        "parameters: [{name: a, target: scheduler, categories: [fcfs, sjf, priority-fcfs]}]"
    ).dimensions
    assert {choice.at(share) for share in (0.0, 0.5, 1.0)} == {"fcfs", "sjf", "priority-fcfs"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("parameters: {slo_base_critical: [5, 1]}", "parameters.slo_base_critical.low: got 5"),
        ("parameters: {slo_base_critical: [1]}", "parameters.slo_base_critical: got [1]"),
        (
            "parameters: [{name: a, target: slo_base_critical, low: x, high: 3}]",
            "parameters[0].low: got 'x'",
        ),
        ("parameters: {slo_base_critcal: [5, 10]}", "did you mean 'slo_base_critical'?"),
        (
            "parameters: [{name: a, target: kv_offload_threshold, low: 0, high: 3}]",
            "parameters[0].high: kv_offload_threshold must be between 0 and 1",
        ),
        ("parameters: {slo_base_critical: {low: 1, hi: 2}}", "did you mean 'high'?"),
        ("parameters: {slo_base_critical: {low: 1}}", "parameters.slo_base_critical.high: missing"),
        ("parameters: {routing_scorers.foo: [1, 2]}", "'foo' is no scorer of the mechanism"),
        ("parameters: {alpha_coeffs: [1, 2]}", "which no search can vary"),
        ("parameters: 3", "parameters: got 3"),
        ("parameters: [{name: a, low: 1, high: 2}]", "parameters[0]: give either target or flag"),
        (
            "parameters: [{name: a, target: num_instances, type: real, low: 1, high: 2}]",
            "parameters[0].type: got 'real'",
        ),
        (
            "parameters: [{name: a, target: num_instances, low: 1.5, high: 2}]",
            "parameters[0].low: got 1.5",
        ),
        (
            "parameters: [{name: a, target: slo_age_weight, low: 0, high: 1, prior: log-uniform}]",
            "parameters[0].low: got 0",
        ),
        (
            "parameters: [{name: a, target: scheduler, categories: [fcfs, lifo]}]",
            "parameters[0].categories[1]: scheduler 'lifo' is not known",
        ),
        ("parameters: [num_instances: [1, 2], num_instances: [1, 3]]", "parameters[1].name"),
        ("constraint: 3", "did you mean 'constraints'?"),
        ("constraints: [{metric: a, direction: up, threshold: 2}]", "constraints[0].direction"),
        ("overrides: [{when: {a: 1}, settings: {}}]", "overrides[0].when.a"),
        ("required_settings: {kv_cpu_blocks: {min: 1}}", "required_settings.kv_cpu_blocks"),
        ("success_criteria: [{metric: a, direction: min}]", "success_criteria[0]"),
        ("fixed_args: [a]", "fixed_args: mechanism is given too"),
        ("objective: {metric: a}", "objective: objectives is given too"),
        ("seeds: [a]", "seeds[0]"),
        ("search: {engin: gp}", "search.engin: the key is unknown"),
    ],
)
def test_errors_name_the_key(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        space(text)
    assert str(error.value).startswith("mine.yaml: ")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_errors_in_a_mechanism_name_the_key() -> None:
    with pytest.raises(ConfigError, match=r"mechanism\.num_instance: .* mean 'num_instances'"):
        space_of(
            parse_strategy(
                "{name: a, objectives: [{metric: a}], mechanism: {num_instance: 2}}", "a"
            )
        )
    with pytest.raises(ConfigError, match="fixed_args: unknown option '--num-instance'"):
        space_of(parse_strategy(THEIRS.replace("--num-instances", "--num-instance"), "a"))


def test_one_file_is_swept_and_compared(tmp_path: Path) -> None:
    """A sweep runs the mechanism of a file with parameters; the key of earlier files is read with a note."""
    path = tmp_path / "a.yaml"
    settings = "{num_instances: 2, slo_age_weight: 1e-4}"
    plain = f"name: a\nmechanism: {settings}"
    wanted = ClusterConfig(num_instances=2, slo_age_weight=1e-4)
    assert space_of(parse_strategy(plain, "a.yaml")).base == wanted
    with pytest.warns(ConfigWarning, match=r"a\.yaml: settings is spelt mechanism by now"):
        parse_strategy(plain.replace("mechanism", "settings"), "a.yaml")
    searched = plain + "\nparameters: {num_instances: [1, 4]}\nobjectives: [{metric: ttft_p99_ms}]"
    with pytest.warns(
        ConfigWarning, match="parameters, objectives: not used here; the mechanism is run"
    ):
        path.write_text(searched)
        swept = make_plan(strategies=[str(path)], seeds=[1]).strategies
    assert [(arm.name, arm.config) for arm in swept] == [("a", wanted)]
    with pytest.raises(ConfigError, match="objectives: there are none"):
        Valuation(parse_strategy(plain, "a.yaml"))


@pytest.mark.parametrize("name", list_library())
def test_library_is_valid(name: str) -> None:
    found = space_of(load_strategy(name))
    assert found.strategy.description
    assert Valuation(found.strategy, has_loads=bool(found.strategy.loads)).names
    assert workload_of(found.strategy).clients
    assert not found.dimensions or make(found, found.strategy.search)


def test_library_has_every_iteration_and_idea() -> None:
    names = list_library()
    for iteration in range(12):
        assert any(name.startswith(f"iter{iteration:02d}_") for name in names)
    for idea in (1, 2, 3):
        assert any(name.startswith(f"idea{idea}_") for name in names)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'iter00_baseline'"):
        load_strategy("iter00_basline")
    with pytest.raises(ConfigError, match="does not exist"):
        load_strategy(str(tmp_path / "none.yaml"))


OLD = """
name: old spelling
mechanism:
  num_instances: 2
  routing_policy: weighted
  routing_scorers: "class-backlog:1,load-balance:1"
  priority_policy: slo-deadline
  scheduler: priority-fcfs
  slo_deadline_least_left: 5000
parameters:
  - {name: tokens, target: class_backlog_token_us}
  - {name: deadline, target: slo_deadline_critical, low: 20000, high: 200000}
  - {name: weight, target: routing_scorers.class-backlog, low: 0.1, high: 2.0}
objectives: [{metric: ttft_p99_ms}]
"""
NEW = (
    OLD.replace("class-backlog:1", "sweeps/strategies/policies/intent.py:class_backlog:1")
    .replace("slo-deadline", "sweeps/strategies/policies/deadlines.py:slo_deadline")
    .replace("slo_deadline_least_left", "priority.least_left_us")
    .replace("class_backlog_token_us", "scorer.class_backlog.token_us")
    .replace("slo_deadline_critical", "policies.deadline_critical_us")
    .replace("routing_scorers.class-backlog", "routing_scorers.class_backlog")
)


def test_an_old_spelling_means_the_same_and_is_told_once() -> None:
    with pytest.warns(ConfigWarning) as told:
        old = space_of(parse_strategy(OLD, "old.yaml"))
    new = space_of(parse_strategy(NEW, "new.yaml"))
    assert old.dimensions == new.dimensions and old.base == new.base
    point = {"tokens": 12.0, "deadline": 30_000, "weight": 0.5}
    assert (config := old.config_with(point)) == new.config_with(point)
    assert weights_of(config.scorers()) == {"class_backlog": 0.5, "load-balance": 1.0}
    assert config.value("policies.deadline_critical_us") == 30_000
    said = sorted(str(one.message) for one in told)
    assert len(said) == 6 and all(one.startswith("old.yaml: ") for one in said)
    assert "old.yaml: class_backlog_token_us is spelt scorer.class_backlog.token_us by now" in said


def test_a_file_extends_a_strategy() -> None:
    """Its mechanism changes the other's; what it does not say is the other's too."""
    mine = parse_strategy("name: mine\nextends: vllm\nmechanism: {num_instances: 3}\n", "mine.yaml")
    assert mine.baseline == "vllm"
    parent = load_strategy("vllm")
    assert mine.mechanism == ours({**parent.mechanism, "num_instances": 3})
    assert (mine.on_gpus, mine.objectives) == (parent.on_gpus, parent.objectives)
    assert mine.description == ""
    for text, problem in (
        ("name: mine\nextends: vlm\n", "extends: got 'vlm'; did you mean 'vllm'|use one of"),
        ("name: mine\nextends: vllm\nfixed_args: [--tp, '1']\n", "both have a mechanism"),
    ):
        with pytest.raises(ConfigError, match=problem):
            parse_strategy(text, "mine.yaml")
