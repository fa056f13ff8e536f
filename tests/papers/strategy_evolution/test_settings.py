"""Settings are the record's scenarios, number by number."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from blis_jax.cluster.config import from_flags
from blis_jax.errors import ConfigError
from blis_jax.workload.spec import load_spec
from papers.record.settings import named
from papers.strategy_evolution.figures.data import SIZES, needed
from papers.strategy_evolution.record import RECORD


@pytest.mark.golden
def test_settings_are_those_of_the_recorded_scenarios(golden_dir: Path) -> None:
    folder = golden_dir / "scheduling"
    index = json.loads((folder / "index.json").read_text())
    settings = RECORD.settings
    num_checked = 0
    for entry in index["scenarios"]:
        name, _, seed = entry["name"].rpartition("_s")
        if not name.startswith("it") or seed not in ("42", "43"):
            continue
        setting = settings[name]
        recorded = from_flags(json.loads((folder / entry["config_file"]).read_text())["config"])
        for field in dataclasses.fields(recorded):
            if field.name != "routing_scorers":
                ours, theirs = (getattr(c, field.name) for c in (setting.config, recorded))
                assert ours == theirs, (name, field.name)
        assert setting.config.scorers() == recorded.scorers(), name
        spec = load_spec(folder / "specs" / f"{entry['workload_spec']}.yaml")
        assert setting.spec == spec, name
        num_checked += 1
    is_copy = golden_dir.is_relative_to(
        Path(__file__).parents[2]
    )  # which has a part of the scenarios
    assert num_checked >= (56 if is_copy else 84)


def test_identity_is_of_what_is_simulated() -> None:
    settings = RECORD.settings
    assert settings["it07_kv5000_best"].identity == settings["it09_kv5000_sloPre0"].identity
    assert settings["it05_best"].identity != settings["it06_rate1500_best"].identity
    assert settings["it05_best"].identity != settings["it08_opt"].identity


def test_settings_of_the_figures_can_be_made() -> None:
    names = [setting.name for setting in needed()]
    assert len(names) > 80
    for setting in needed():
        assert setting.config.num_instances in SIZES
        assert setting.spec.num_requests


def test_unknown_names_are_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="did you mean 'it05_best'"):
        named(RECORD.settings, ["it05_bets"])


def test_a_new_setting_of_the_simulator_leaves_kept_runs_where_they_are() -> None:
    """If this fails, a field of ClusterConfig is new: give it its default in `setting_values._LATER`."""
    assert RECORD.settings["it00_baseline"].identity == "8b10aa231193eadf"
