"""Every setting is declared once; its check, its option and its row on the page follow."""

from __future__ import annotations

import math
from typing import Any

import pytest

from blis_jax.cluster.adapters import AdapterSettings
from blis_jax.cluster.config import FIELDS, ClusterConfig, PolicySettings
from blis_jax.cluster.machines import Machines, MemorySettings, PoolSettings
from blis_jax.cluster.offload_tiers import OffloadSettings
from blis_jax.cluster.router import BatchSettings, FlowSettings, RouterSettings
from blis_jax.cluster.settings import DeclaredSetting, declared_in
from blis_jax.cluster.speculation import SpeculativeSettings
from blis_jax.commands.options.cluster_flags import CLUSTER_FLAGS, flag_of, name_of
from blis_jax.errors import ConfigError

PARTS = (
    Machines,
    PoolSettings,
    MemorySettings,
    OffloadSettings,
    AdapterSettings,
    RouterSettings,
    FlowSettings,
    BatchSettings,
    SpeculativeSettings,
    PolicySettings,
    ClusterConfig,
)
DECLARED: dict[str, DeclaredSetting] = {
    name: field.metadata["setting"] for name, field in FIELDS.items()
}
NUMBERS = [name for name, field in FIELDS.items() if field.type in ("int", "float")]
# the end of a run, the machines of a policy file, and what a profile decides have options elsewhere or none
WITHOUT_OPTION = {"horizon", "node_pools", "revision", "variant", "corrected"}


def test_the_parts_have_every_setting_once() -> None:
    names = [name for part in PARTS for name in declared_in(part)]
    assert sorted(names) == sorted(FIELDS)
    # 165, and what came later: drafted tokens, who decides how many, where prompts are cut
    assert len(FIELDS) <= 168


@pytest.mark.parametrize("name", FIELDS)
def test_a_declaration_says_what_the_setting_is(name: str) -> None:
    declared = DECLARED[name]
    assert declared.default == FIELDS[name].default and declared.meaning
    if declared.choices:
        assert declared.default in declared.choices


@pytest.mark.parametrize("name", sorted(set(FIELDS) - WITHOUT_OPTION))
def test_a_setting_has_its_option(name: str) -> None:
    (flag,) = [flag for flag in CLUSTER_FLAGS if name_of(flag) == name]
    assert flag == flag_of(name)
    assert flag.help.partition(" (also --")[0] in (DECLARED[name].meaning, DECLARED[name].option)
    if not DECLARED[name].is_found:
        assert flag.default == FIELDS[name].default


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_bounds_is_refused(name: str) -> None:
    declared = DECLARED[name]
    outside: list[Any] = [end - 1 for end in (declared.low,) if math.isfinite(end)]
    outside += [end + 1 for end in (declared.high,) if math.isfinite(end)]
    outside += [declared.low] * declared.excludes_low
    for value in outside:
        given = int(value) if FIELDS[name].type == "int" else float(value)
        with pytest.raises(ConfigError, match=rf"^{name}\b"):
            ClusterConfig(**{name: given})


@pytest.mark.parametrize("name", [name for name, one in DECLARED.items() if one.choices])
def test_a_text_that_is_no_choice_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} 'elsewhere' is not known; use ") as caught:
        ClusterConfig(**{name: "elsewhere"})
    assert all(choice in str(caught.value) for choice in DECLARED[name].choices)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("tp", 2.0, "is not a whole number"),
        ("corrected", 1, "is not true or false"),
        ("kv_offload_threshold", math.nan, "is not finite"),
        ("max_concurrency", 2**31, "is too large"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .*{says}"):
        ClusterConfig(**{name: value})
