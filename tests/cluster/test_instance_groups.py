"""Groups of instances as settings: how they are written, checked, saved and hashed."""

import dataclasses
import json
from typing import Any, NamedTuple

import numpy as np
import pytest

from blis_jax import ClusterConfig, ConfigError
from blis_jax.cluster import config
from blis_jax.cluster.instance_groups import KEYS, InstanceGroup, everywhere
from blis_jax.cluster.setting_values import all_values
from blis_jax.cluster.step_times import name_of
from blis_jax.commands.run.one_run import dashed
from blis_jax.engine.mechanism import params
from sweeps.ledger.trial import config_of
from sweeps.strategies.arms import arm_of, settings_of
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.moved import arguments, config_from_arguments, values_for_hash
from sweeps.strategies.space import space_of
from tests.support.recorded.reference_data import REPO_ROOT

GROUPS: list[dict[str, Any]] = [
    {"count": 2, "name": "fast", "beta_coeffs": [1000.0, 2.0, 3.0], "total_kv_blocks": 500},
    {"count": 1, "role": "decode", "slo_prefill": True, "kv_transfer_bandwidth": 2.5},
]


def test_groups_can_be_written_in_many_ways(tmp_path):
    path = tmp_path / "groups.yaml"
    path.write_text(json.dumps(GROUPS))
    written = [
        GROUPS,
        tuple(GROUPS),
        str(path),
        json.dumps(GROUPS),
        [{name.replace("_", "-"): value for name, value in one.items()} for one in GROUPS],
        [GROUPS[0] | {"beta": [1000, "2e0", 3], "beta_coeffs": None}, GROUPS[1]],
        [InstanceGroup(**one) for one in GROUPS],
    ]
    configs = {ClusterConfig(instances=one) for one in written}
    assert len(configs) == 1
    (one,) = configs
    assert one.num_instances == 3 and [group.plain() for group in one.instances] == GROUPS


def test_pools_in_short_bring_their_policy_with_them():
    config = ClusterConfig(instances="1P2D")
    assert [(group.count, group.role) for group in config.instances] == [
        (1, "prefill"),
        (2, "decode"),
    ]
    assert (config.num_instances, config.hand_over_policy) == (3, "pools")
    assert ClusterConfig(instances="1p2d", hand_over_policy="none").hand_over_policy == "none"
    with pytest.raises(ConfigError, match="or pools such as 1P2D"):
        ClusterConfig(instances="1P2")


def test_saved_configurations_carry_the_groups():
    cluster = ClusterConfig(instances=GROUPS, routing_policy="least-loaded")
    texts = [json.dumps(values(cluster)) for values in (all_values, dashed, settings_of)]
    assert all(json.loads(text)["instances"] == GROUPS for text in texts)
    whole, as_flags, changed = (json.loads(text) for text in texts)
    as_tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in whole.items()}
    assert ClusterConfig(**as_tuples) == cluster
    assert ClusterConfig(**dataclasses.asdict(cluster)) == cluster
    assert config.from_flags(as_flags) == cluster
    assert config_of(changed) == cluster
    assert config_from_arguments(arguments(cluster)).instances == cluster.instances


def test_hashes_of_plain_clusters_are_as_before():
    plain = ClusterConfig(num_instances=3)
    assert "instances" not in values_for_hash(plain) and "instances" not in all_values(plain)
    grouped = values_for_hash(ClusterConfig(instances=GROUPS))
    assert grouped["instances"] == GROUPS and grouped["num_instances"] == 3
    assert values_for_hash(ClusterConfig(instances=[{"count": 3}])) != values_for_hash(plain)


def test_groups_bring_their_number_with_them():
    eight = ClusterConfig(num_instances=8)
    three = eight.replace(instances=GROUPS)
    assert three.num_instances == 3
    assert three.replace(instances=GROUPS[:1]).num_instances == 2
    assert three.replace(instances=(), num_instances=5) == ClusterConfig(num_instances=5)
    numbered = eight.replace(
        routing_policy="power-of-two", policy_numbers={"routing.candidates": 3}
    )
    split = [{"count": 1, "role": "prefill"}, {"count": 2, "role": "decode"}]
    assert numbered.replace(instances=split, hand_over_policy="pools").num_instances == 3
    for wanted in (1, 8):
        with pytest.raises(ConfigError, match=f"num_instances is {wanted}, but .* add up to 3"):
            three.replace(num_instances=wanted)


def test_a_number_that_no_instance_takes_from_the_cluster_cannot_be_changed_there():
    both = [{"total_kv_blocks": 50}, {"total_kv_blocks": 70, "count": 2}]
    cluster = ClusterConfig(instances=both)
    with pytest.raises(ConfigError, match="total_kv_blocks: every group of instances has its own"):
        cluster.replace(total_kv_blocks=60)
    alike = everywhere(cluster, total_kv_blocks=60, horizon=5)
    np.testing.assert_array_equal(params(alike).cluster.total_kv_blocks, [60, 60, 60])
    assert alike.horizon == 5 and everywhere(ClusterConfig(), horizon=5).horizon == 5


def test_the_latency_model_is_told_by_the_groups():
    """The cluster's own three β are of no instance."""
    four = ClusterConfig(instances=[{"beta": [1.0, 2.0, 3.0, 4.0]}, {"beta": [9.0, 0, 0, 0]}])
    assert name_of(four) == "blackbox-context"
    model = f"{REPO_ROOT / 'examples' / 'policies' / 'step_times.py'}:interference"
    assert four.replace(latency_model=model).profile.endswith("/interference")


def test_the_example_and_the_page_have_what_there_is():
    example = REPO_ROOT / "examples" / "instances.yaml"
    assert ClusterConfig(instances=str(example)).num_instances == 3
    page = (REPO_ROOT / "docs" / "how-to" / "instances.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in page for key in KEYS)


def test_a_strategy_file_finds_its_groups_beside_itself(tmp_path, monkeypatch):
    (tmp_path / "groups.yaml").write_text(json.dumps(GROUPS))
    text = "name: mine\nmechanism: {instances: groups.yaml, routing_policy: least-loaded}\n"
    (tmp_path / "mine.yaml").write_text(text)
    assert arm_of(str(tmp_path / "mine.yaml")).config.num_instances == 3
    inline = space_of(
        parse_strategy(f"name: mine\nmechanism: {{instances: {json.dumps(GROUPS)}}}\n", "x")
    ).base
    assert [group.plain() for group in inline.instances] == GROUPS


class Bad(NamedTuple):
    given: Any
    sentence: str


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        Bad([{"counts": 2}], "group 1: the key 'counts' is unknown; .*; did you mean 'count'?"),
        Bad([{}, {"total_kv_block": 2}], "group 2: .*; did you mean 'total_kv_blocks'?"),
        Bad([{"count": 0}], "group 1: count: got 0, allowed is a whole number at least 1"),
        Bad([{"count": -2}], "group 1: count: got -2, allowed is a whole number at least 1"),
        Bad([{"count": True}], "count: got True, allowed is a whole number"),
        Bad([{"count": 40_000}], "num_instances must be between 1 and 32767, got 40000"),
        Bad([{"name": 5}], "name: got 5, allowed is a text"),
        Bad([{"role": "decod"}], "both or prefill or decode; did you mean 'decode'?"),
        Bad([{"role": ["decode"]}], "role: got .*, allowed is both or"),
        Bad([{"total_kv_blocks": -1}], "group 1: total_kv_blocks must be above 0, got -1"),
        Bad([{"total_kv_blocks": 1.5}], "total_kv_blocks: 1.5 is not a whole number"),
        Bad([{"name": "a", "slo_prefill": 1}], r"group 1 \(a\): slo_prefill: 1 is not true or"),
        Bad([{"kv_offload_threshold": 2}], "kv_offload_threshold must be between 0 and 1, got 2"),
        Bad([{"alpha": [1, 2]}], r"alpha_coeffs must be three .* got \[1.0, 2.0\]"),
        Bad([{"beta": [1, 2]}], "beta_coeffs must be three or four finite numbers"),
        Bad([{"beta": [1, 2, -3]}], "beta_coeffs must be three or four finite numbers at least 0"),
        Bad([{"beta": 5}], "beta_coeffs: got 5, allowed is a list of numbers"),
        Bad([{"beta": [1, "x", 3]}], "allowed is a list of numbers"),
        Bad([{"beta": [1, 2, 3], "beta_coeffs": [1, 2, 3]}], "beta_coeffs is given twice"),
        Bad([{"beta": [1, 2, 3, 4]}, {}], "as many beta_coeffs each; got 3 in one group and 4"),
        Bad([5], "group 1: got 5, allowed is a mapping such as {count: 2"),
        Bad({"count": 2}, "instances: got {'count': 2}, allowed is a list of groups"),
        Bad(7, "instances: got 7, allowed is a list of groups"),
        Bad("nowhere.yaml", "nowhere.yaml does not exist; give the path of a list of instance"),
        Bad("[{count: 2, count: 3}]", "the key 'count' is given twice"),
        Bad("[]", "no group is given"),
    ],
)
def test_bad_groups_get_one_sentence(given: Any, sentence: str):
    with pytest.raises(ConfigError, match=sentence) as caught:
        ClusterConfig(instances=given)
    assert "\n" not in str(caught.value)
