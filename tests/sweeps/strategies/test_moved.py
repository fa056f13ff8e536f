"""Policies that have become files: old names and settings mean the same, and their files are found from any folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import has_number, numbered
from blis_jax.core.kinds import KINDS
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.numbers import numbers_of
from sweeps.strategies import moved
from sweeps.strategies.moved import config_from_arguments

DEADLINE = "sweeps/strategies/policies/deadlines.py:slo_deadline"
PAIRS = [(kind, name) for kind, paths in moved.PATHS.items() for name in paths]
# every one of the 94 settings that had gone; a number that follows a setting of the cluster never had its own
GONE = {
    f"{name.replace('-', '_')}_{field}": (kind, name)
    for kind, name in PAIRS
    for field, one in numbers_of(registry.find(kind, moved.PATHS[kind][name]).params).items()
    if one.setting is None and not field.startswith("deadline_")
}


def of_settings(**settings: Any) -> ClusterConfig:
    return moved.changed(ClusterConfig(), settings)


def with_policy(kind: str, name: str) -> ClusterConfig:
    if kind == "scorer":
        return of_settings(routing_policy="weighted", routing_scorers=f"{name}:1")
    return of_settings(**{KINDS[kind].setting: name})


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_an_old_name_is_the_file_s_policy(kind: str, name: str) -> None:
    path = moved.PATHS[kind][name]
    assert moved.known_as(path) == name
    assert numbered(with_policy(kind, name)) == numbered(with_policy(kind, path))


@pytest.mark.parametrize("old", GONE)
def test_an_old_setting_is_the_number_of_its_policy(old: str) -> None:
    kind, name = GONE[old]
    config = with_policy(kind, name)
    new = moved.today(old)
    default = config.value(new)
    assert has_number(config, new)
    assert moved.changed(config, {old: default}).value(new) == default
    assert of_settings(**{old: default}) == ClusterConfig()  # nobody has it


def test_the_settings_with_names_of_their_own_are_numbers_too() -> None:
    numbers = {
        "slo_deadline_critical": 7,
        "slo_deadline_least_left": 5,
        "cached_block_priority": 0.5,
    }
    config = of_settings(priority_policy="slo-deadline", scheduler="priority-cached", **numbers)
    assert config.value("policies.deadline_critical_us") == 7
    assert dict(numbered(config).priority.numbers)["deadline_critical_us"] == 7
    assert dict(numbered(config).priority.numbers)["least_left_us"] == 5
    assert dict(numbered(config).scheduler.numbers)["per_block"] == 0.5
    gate = of_settings(admission_policy="class-gated", class_gated_standard=3)
    assert dict(numbered(gate).admission.numbers)["standard_load"] == 3


def test_a_record_of_all_settings_is_read_without_those_that_had_no_effect() -> None:
    values = {"num_instances": 3, "priority_policy": "slo-deadline", "policy_numbers": []}
    found = moved.config_of_record(
        values | {"slo_deadline_least_left": 9, "class_gated_standard": 100.0}
    )
    assert found.policy_numbers == (("priority.least_left_us", 9.0),)
    assert found.priority_policy == DEADLINE


def test_other_configurations_keep_their_hash() -> None:
    """The first records were hashed with eight of the settings that have gone."""
    values = moved.values_for_hash(ClusterConfig())
    assert {name: values[name] for name in moved.OF_FIRST_RECORDS} == moved.OF_FIRST_RECORDS


def test_a_construction_knows_the_names_of_today_alone() -> None:
    with pytest.raises(ConfigError, match="priority_policy 'slo-deadline' is not known; use one"):
        ClusterConfig(priority_policy="slo-deadline")
    with pytest.raises(ConfigError, match="setting 'slo_deadline_least_left' is unknown"):
        ClusterConfig().replace(slo_deadline_least_left=3)
    words = ["--model", ClusterConfig.model, "--priority-policy", "slo-deadline"]
    assert config_from_arguments(words).priority_policy == DEADLINE  # of a strategy file


def test_a_path_may_begin_with_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ClusterConfig(priority_policy=DEADLINE).value("priority.least_left_us") == 10_000
    for path in ("sweeps/strategies/nowhere.py:one", "no_such_package/file.py:one"):
        with pytest.raises(ConfigError, match="the file cannot be read"):
            ClusterConfig(priority_policy=path)


def test_a_number_of_a_file_follows_the_setting_that_it_names() -> None:
    config = ClusterConfig(priority_policy=DEADLINE, slo_base_critical=77.0)
    assert dict(numbered(config).priority.numbers)["base_critical"] == 77.0
    own = config.replace(**{"priority.base_critical": 5.0})
    assert dict(numbered(own).priority.numbers)["base_critical"] == 5.0


def test_a_number_of_every_policy_goes_to_those_that_have_it() -> None:
    config = of_settings(
        routing_policy="weighted",
        routing_scorers="deadline-wait:1,load-balance:1",
        priority_policy=DEADLINE,
        policy_numbers={"policies.deadline_critical_us": 5, "policies.token_us": 2},
    )
    chosen = numbered(config)
    ((wait, _), _) = chosen.scorers
    assert dict(wait.numbers) == {"deadline_critical_us": 5.0, "token_us": 2.0}
    assert dict(chosen.priority.numbers)["deadline_critical_us"] == 5.0
    with pytest.raises(ConfigError, match=r"policies\.deadline_critcal_us belongs to no policy"):
        config.replace(**{"policies.deadline_critcal_us": 5})


def test_a_policy_that_is_replaced_takes_its_numbers_with_it() -> None:
    config = of_settings(
        routing_policy="weighted",
        routing_scorers="class-backlog:1,load-balance:1",
        priority_policy=DEADLINE,
        policy_numbers={
            "policies.deadline_critical_us": 5,
            "priority.least_left_us": 4,
            "scorer.class_backlog.token_us": 2,
        },
    )
    kept = moved.changed(config, {"priority_policy": "slo-slack"})
    assert dict(kept.policy_numbers) == {
        "policies.deadline_critical_us": 5,
        "scorer.class_backlog.token_us": 2,
    }
    assert config.replace(routing_scorers="load-balance:1", priority_policy="constant") == (
        config.replace(
            policy_numbers=(), routing_scorers="load-balance:1", priority_policy="constant"
        )
    )
