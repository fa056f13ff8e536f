"""The page "Mechanisms that we define" has every mechanism and its numbers as they are declared."""

import pytest

from blis_jax.policies import registry
from blis_jax.policies.numbers import numbers_of
from blis_jax.reports.render import row_line
from sweeps.lists import number_row
from sweeps.strategies.moved import PATHS, known_as
from tests.support.recorded.reference_data import REPO_ROOT

PAGE = REPO_ROOT / "docs" / "reference" / "defined-mechanisms.md"
DESCRIBED = [
    (kind, path)
    for kind, paths in PATHS.items()
    for name, path in paths.items()
    if name
    in (
        "class-gated",
        "kv-gated",
        "burst-throttled",
        "match-switched",
        "regime-switched",
        "cached-of-two",
        "session-hashed",
    )
] + [("routing", "power-of-two")]


@pytest.mark.parametrize(("kind", "name"), DESCRIBED)
def test_a_mechanism_and_its_numbers_are_on_the_page(kind: str, name: str):
    text = PAGE.read_text(encoding="utf-8")
    assert f"## `{known_as(name)}`" in text
    for field, number in numbers_of(registry.find(kind, name).params).items():
        assert row_line(number_row(kind, name, field, number)) in text
