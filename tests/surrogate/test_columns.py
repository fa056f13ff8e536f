import pytest

from blis_jax.errors import ConfigError
from surrogate.columns import codes_of, from_json, to_json
from tests.surrogate.made_data import COLUMNS


def test_columns_survive_json() -> None:
    assert from_json(to_json(COLUMNS)) == COLUMNS


def test_codes_are_places_of_categories() -> None:
    points = [{"load": "1.5", "chunk": 3, "order": "last"}]
    assert codes_of(COLUMNS, points).tolist() == [[1.5, 3.0, 1.0]]
    assert COLUMNS[2].value(1.0) == "last"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lod": 1.0}, "did you mean"),
        ({"order": "middle"}, "allowed is 'first', 'last'"),
        ({"load": "much"}, "'much' is not a number"),
    ],
)
def test_wrong_points_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        codes_of(COLUMNS, [{"load": 1.0, "chunk": 3, "order": "first", **change}])


def test_missing_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="order is missing"):
        codes_of(COLUMNS, [{"load": 1.0, "chunk": 3}])
