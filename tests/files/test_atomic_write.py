"""JSON as BLIS writes it."""

import json

from blis_jax.files.atomic_write import json_as_go


def test_small_numbers_are_written_as_go_writes_them() -> None:
    document = {"a": 6.419116332240783e-05, "b": 1e-07, "c": [5e-05, "x 5e-05", -2.5e-12, 1e-06]}
    text = json_as_go(document)
    # what encoding/json of Go 1.27 prints
    lines = ['"a": 0.00006419116332240783,', '"b": 1e-7,', '"c": [', "0.00005,", '"x 5e-05",']
    assert [line.strip() for line in text.splitlines()][1:-2] == [
        *lines,
        "-2.5e-12,",
        "0.000001",
    ]
    assert json.loads(text) == document
