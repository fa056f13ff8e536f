"""Every setting, policy, parameter and signal has its row."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from blis_jax.cluster.config import FIELDS
from blis_jax.cluster.named_policies import is_policy_number
from blis_jax.core.kinds import KINDS
from blis_jax.core.types import RequestView, Snapshots
from blis_jax.errors import ConfigError
from blis_jax.policies import contexts, registry
from sweeps.promote import maps
from sweeps.promote.golang.plugins import policies_of_kind
from sweeps.promote.maps import DICTIONARY, PAGE, maps_files, reference_page, signals_read
from sweeps.strategies.file import list_library, load_strategy
from sweeps.strategies.moved import PATHS
from sweeps.strategies.space import space_of
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.promote.promotions import MINE, maps_of, promotion, read_yaml

SIGNALS = {row.name for row in maps.rows_of(maps.SignalRow)}
READABLE = {
    "gateway": contexts.GatewayContext,
    "picker": contexts.PickerContext,
    "queue": contexts.QueueContext,
    "completion": contexts.Completion,
    "cluster": contexts.ClusterContext,
    "hand_over": contexts.HandOverContext,
    "victim": contexts.VictimContext,
    "offload": contexts.OffloadContext,
    "draft": contexts.DraftContext,
    "snapshots": Snapshots,
    "request": RequestView,
}


def test_map_a_has_every_setting_once() -> None:
    named = [name for row in maps.rows_of(maps.SettingRow) for name in row.settings]
    numbers = [name for name in named if name.endswith(f".{maps.NUMBER}")]
    assert sorted(named) == sorted([*FIELDS, *numbers])
    assert all(is_policy_number(name) for name in numbers)


def test_map_a_has_every_policy_once() -> None:
    named = [row.policy for row in maps.rows_of(maps.PolicyRow)]
    assert sorted(named) == sorted(
        f"{kind}/{name}"
        for kind, names in registry.NAMES.items()
        for name in (*names, *PATHS.get(kind, ()))
    )


def test_map_a_has_every_kind() -> None:
    assert {row.kind for row in maps.rows_of(maps.InterfaceRow)} == set(KINDS)


@pytest.mark.parametrize("name", list_library())
def test_map_a_has_every_parameter_of_the_library(name: str) -> None:
    strategy = load_strategy(name)
    targets = [one.target for one in space_of(strategy).dimensions]
    for setting in (*targets, *strategy.mechanism, "scorer.Mine.gain"):
        assert maps.setting_row(setting).status in ("exact", "approximate", "code", "none")


def test_map_b_has_every_field_that_a_policy_may_read() -> None:
    named = [row.name for row in maps.rows_of(maps.SignalRow)]
    fields = {
        f"{place}.{field.name}"
        for place, owner in READABLE.items()
        for field in dataclasses.fields(owner)
    }
    assert sorted(named) == sorted(fields)


@pytest.mark.parametrize("kind", [kind for kind, names in registry.NAMES.items() if names])
def test_what_policies_read_is_found_and_has_rows(kind: str) -> None:
    for name in policies_of_kind(kind):
        assert signals_read(registry.find(kind, name)) <= SIGNALS


def test_what_is_read_is_what_the_function_asks_for() -> None:
    read = signals_read(registry.find("scorer", "cost-benefit"))
    assert {"snapshots.prefix_match_blocks", "request.input_len", "gateway.block_size"} < read
    assert "snapshots.kv_utilization" not in read


def test_signals_of_gaps_have_rows() -> None:
    for row in maps.rows_of(maps.GapRow):
        assert set(row.signals) <= SIGNALS
    ids = [row.id for row in maps.rows_of(maps.GapRow)]
    assert len(ids) == len(set(ids)) >= 14


def test_simulated_gaps_are_settings_of_a_cluster() -> None:
    from blis_jax.cluster.config import ClusterConfig

    concerns = [row.simulate for row in maps.rows_of(maps.GapRow) if row.simulate]
    assert len(concerns) >= 5
    for settings in concerns:
        assert ClusterConfig(num_instances=2, routing_policy="weighted").replace(**settings)


def test_a_row_without_a_fallback_is_refused() -> None:
    row = maps.setting_row("kv_offload_threshold").model_dump() | {"fallback": ""}
    with pytest.raises(ConfigError, match="needs a fallback"):
        maps.parsed_rows(maps.SettingRow, [row], "settings")


def test_the_page_of_the_docs_is_current() -> None:
    page = REPO_ROOT / "docs/reference/promotion-maps.md"
    assert page.read_text(encoding="utf-8") == reference_page()


# The dictionary of one promotion


@pytest.mark.parametrize("name", list_library())
def test_every_strategy_has_its_dictionary(name: str) -> None:
    files = maps_of(name)
    document = read_yaml(files[DICTIONARY])
    used = [row["name"] for row in document["map_b"] if row["used"]]
    assert used and all(f"`{signal}`" in files[PAGE] for signal in used)
    policies = [row["policy"] for row in document["map_a"]["policies"] if row["used"]]
    assert any(policy.startswith("scheduler/") for policy in policies)


def test_two_runs_give_the_same_bytes() -> None:
    assert maps_files(promotion("iter13_class_lead@found")) == maps_files(
        promotion("iter13_class_lead@found")
    )


def test_a_signal_that_is_not_read_is_not_marked() -> None:
    document = read_yaml(maps_of("iter13_class_lead")[DICTIONARY])
    used = {row["name"]: row["used"] for row in document["map_b"]}
    assert used["snapshots.effective_load"] and not used["snapshots.kv_utilization"]
    assert {row["id"]: row["used"] for row in document["map_c"]}["prefix-block-64"]


def test_a_policy_from_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    given = f"iter00_baseline:routing_scorers={tmp_path}/mine.py:calm~1"
    document = read_yaml(maps_files(promotion(given))[DICTIONARY])
    assert document["policies_from_files"] == [["scorer", "mine.py:calm"]]
    used = {row["name"] for row in document["map_b"] if row["used"]}
    assert "snapshots.batch_size" in used
