"""The page "Mechanisms that we define" has every mechanism and its numbers as they are declared."""

import pytest

from blis_jax.policies import registry
from blis_jax.policies.numbers import numbers_of
from blis_jax.policies.reference import number_row
from tests.support.recorded.reference_data import REPO_ROOT

PAGE = REPO_ROOT / "docs" / "reference" / "defined-mechanisms.md"
DESCRIBED = [
    (kind, name)
    for kind, names in registry.NAMES.items()
    for name, where in names.items()
    if where.startswith("described.") or name in ("power-of-two", "class-gated")
]


@pytest.mark.parametrize(("kind", "name"), DESCRIBED)
def test_a_mechanism_and_its_numbers_are_on_the_page(kind: str, name: str):
    text = PAGE.read_text(encoding="utf-8")
    assert f"## `{name}`" in text
    for field, one in numbers_of(registry.find(kind, name).params).items():
        assert number_row(name, field, one) in text
