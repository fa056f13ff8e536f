"""What follows from a declaration: settings, checks, options, search bounds, the reference page."""

import dataclasses

import pytest

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.commands.options.cluster_flags import CLUSTER_FLAGS
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.numbers import number, numbers_of
from sweeps.lists import all_policies, kinds_table, policies_page
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import space_of
from tests.support.recorded.reference_data import REPO_ROOT


def test_the_page_is_what_the_command_prints():
    text = (REPO_ROOT / "docs" / "reference" / "policies.md").read_text(encoding="utf-8")
    assert text.partition("<!-- made by blis-jax policies --numbers -->\n")[2] == policies_page(
        all_policies()
    )
    guide = (REPO_ROOT / "docs" / "how-to" / "policies.md").read_text(encoding="utf-8")
    assert f"\n\n{kinds_table()}\n\n" in guide


@pytest.mark.parametrize("name", registry.settings())
def test_a_number_is_a_setting_and_an_option_with_its_default(name):
    declared = registry.settings()[name].number
    assert FIELDS[name].default == declared.default == getattr(ClusterConfig(), name)
    (flag,) = [flag for flag in CLUSTER_FLAGS if flag.name == name.replace("_", "-")]
    assert flag.default == declared.default and declared.meaning in flag.help


@pytest.mark.parametrize("name", registry.settings())
def test_a_number_is_checked_as_declared(name):
    declared = registry.settings()[name].number
    outside = [end for end in (declared.low - 1, declared.high + 1) if not declared.permits(end)]
    for value in outside:
        if value in (float("inf"), float("-inf")):
            continue
        given = int(value) if declared.is_whole else value
        with pytest.raises(ConfigError, match=name):
            ClusterConfig(**{name: given})


def test_policies_that_share_a_setting_agree_about_it():
    """Otherwise one setting would have two defaults."""
    found = {}
    for kind, names in registry.NAMES.items():
        for name in names:
            for field, one in numbers_of(registry.find(kind, name).params).items():
                setting = registry.setting_of(name, field, one)
                if setting is not None:
                    assert found.setdefault(setting, one) == one


def test_a_search_takes_bounds_and_prior_from_the_declaration():
    text = """
name: declared
mechanism: {num_instances: 2, scheduler: priority-fcfs, priority_policy: slo-tiered}
parameters:
  - {name: age, target: slo_age_weight}
  - {name: grace, target: slo_threshold_standard}
  - {name: base, target: slo_base_critical, low: 7, high: 8}
objectives: [{metric: ttft_p99_ms}]
"""
    age, grace, base = space_of(parse_strategy(text, "declared.yaml")).dimensions
    assert (age.low, age.high, age.is_log) == (1e-6, 1e-4, True)
    assert (grace.low, grace.high, grace.kind) == (0, 300_000, "integer")
    assert (base.low, base.high, base.is_log) == (7, 8, False)


def test_a_declaration_must_permit_its_own_default():
    with pytest.raises(ConfigError, match="5 is not allowed; use between 0 and 1"):
        number(5.0, "", "a share", low=0, high=1)
    with pytest.raises(ConfigError, match="use uniform or log-uniform"):
        number(0.5, "", "a share", prior="normal")


def test_every_policy_is_of_the_kind_that_lists_it():
    for kind, names in registry.NAMES.items():
        for name in names:
            assert registry.find(kind, name).kind == kind
    assert dataclasses.is_dataclass(registry.find("routing", "weighted"))
