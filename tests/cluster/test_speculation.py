"""What `speculative_config` says: as vLLM writes it, and what is refused with which sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blis_jax import ClusterConfig, ConfigError
from blis_jax.cluster.setting_values import all_values, config_of_values
from blis_jax.cluster.speculation import SpeculativeConfig, given_config

EAGLE = {"method": "eagle", "num_speculative_tokens": 3, "draft_step_us": 250}


def drafts(**changes: Any) -> SpeculativeConfig:
    return given_config(EAGLE | {"acceptance_rate": 0.5} | changes)


def test_a_mapping_its_json_and_a_file_say_the_same(tmp_path: Path) -> None:
    section = EAGLE | {"acceptance_rate": [0.8, 0.6, 0.4]}
    path = tmp_path / "drafts.json"
    path.write_text(json.dumps(section))
    made = given_config(section)
    assert made == given_config(json.dumps(section)) == given_config(str(path))
    assert made.reach("critical") == [0.8, 0.8 * 0.6, 0.8 * 0.6 * 0.4]
    assert made.mean_tokens() == pytest.approx(1 + 0.8 + 0.48 + 0.192)


def test_one_rate_is_the_same_as_a_list_of_it() -> None:
    assert drafts() == drafts(acceptance_rate=[0.5] * 3)
    assert drafts().mean_tokens() == pytest.approx((1 - 0.5**4) / (1 - 0.5))


def test_rates_of_vllm_are_those_of_all_drafts_at_a_position() -> None:
    made = given_config(EAGLE | {"synthetic_acceptance_rates": [0.8, 0.48, 0.0]})
    assert made.reach("") == pytest.approx([0.8, 0.48, 0.0])


def test_classes_have_their_rates() -> None:
    made = drafts(acceptance_rate={"critical": 0.9, "other": [0.5, 0.2, 0.1]})
    assert made.reach("critical")[0] == 0.9
    assert made.reach("batch") == made.reach("") == pytest.approx([0.5, 0.1, 0.01])


@pytest.mark.parametrize(
    "ranges", [[[1, 16, 3], [64, 128, 2], [256, 4096, 0]], {"1-16": 3, "64-128": 2, "256-4096": 0}]
)
def test_a_gap_between_batch_sizes_has_the_drafts_before_it(ranges: Any) -> None:
    made = drafts(num_speculative_tokens_per_batch_size=ranges)
    assert made.schedule == ((0, 3), (1, 3), (64, 2), (256, 0))


@pytest.mark.parametrize(
    "section", [EAGLE | {"acceptance_rate": 0.5}, {"num_speculative_tokens": 0}]
)
def test_each_survives_being_written_and_read(section: dict[str, Any]) -> None:
    config = ClusterConfig(speculative_config=section)
    assert config_of_values(json.loads(json.dumps(all_values(config)))) == config


def test_all_that_it_may_say_survives_being_written_and_read() -> None:
    section = EAGLE | {
        "acceptance_rate": {"critical": 0.9, "other": 0.5},
        "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 99, 1]],
        "acceptance": "expected",
        "draft_token_us": 2.5,
    }
    config = ClusterConfig(speculative_config=section)
    values = json.loads(json.dumps(all_values(config)))
    assert config_of_values(values) == config
    assert "speculative_config" not in all_values(ClusterConfig())
    assert (
        "3 drafts a step (eagle), 3 from 1 requests on, 1 from 9"
        in config.speculative_config.sentence()
    )


def test_drafts_take_the_corrected_profile() -> None:
    config = ClusterConfig(speculative_config=EAGLE | {"acceptance_rate": 0.5})
    assert config.corrected
    assert "corrected" in config.profile


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_speculative_tokens": -1}, "whole number between 0 and 32"),
        ({"num_speculative_tokens": None}, "num_speculative_tokens is missing"),
        ({"method": "eagel"}, "eagle"),
        ({"draft_step_us": None}, "draft_step_us is missing: eagle runs a drafter"),
        ({"draft_step_us": -3}, "allowed is a number between 0"),
        (
            {"acceptance_rate": None},
            "give acceptance_rate or synthetic_acceptance_rates, one of them",
        ),
        ({"synthetic_acceptance_rates": [0.1] * 3}, "not both"),
        ({"acceptance_rate": 1.2}, "got 1.2, allowed is a number between 0 and 1"),
        ({"acceptance_rate": [0.5, 0.5]}, "2 rates for 3 drafted tokens"),
        ({"acceptance_rate": {"critical": 0.5}}, "other is missing"),
        ({"acceptance_rate": {"critcal": 0.5, "other": 0.1}}, "critical"),
        ({"acceptance_rate": None, "synthetic_acceptance_rates": [0.5, 0.6, 0.1]}, "never rise"),
        ({"acceptance": "guessed"}, "allowed is drawn or expected"),
        ({"num_speculative_tokens_per_batch_size": [[1, 5, 2], [4, 9, 1]]}, "overlap"),
        ({"num_speculative_tokens_per_batch_size": "1-5"}, "list of"),
        ({"num_speculative_tokens_per_batch_size": {"1..5": 2}}, "list of"),
        ({"num_spec_tokens": 3}, "num_speculative_tokens"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        drafts(**changes)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"corrected": False}, "claims to be equal to BLIS"),
        ({"revision": "blis-2026-08"}, "blis-2026-08.* claims to be equal to BLIS"),
        ({"kv_cpu_blocks": 100}, "kv_cpu_blocks has no rule"),
        (
            {"max_num_running_reqs": 1024},
            "1024 requests with 3 drafts each .* need 4096 tokens a step",
        ),
        ({"cluster_policy": "outage"}, "cluster_policy outage has no rule"),
    ],
)
def test_where_there_is_no_rule_it_is_refused(settings: dict[str, Any], sentence: str) -> None:
    section = EAGLE | {"acceptance_rate": 0.5}
    with pytest.raises(ConfigError, match=sentence):
        ClusterConfig(speculative_config=section, **settings)
