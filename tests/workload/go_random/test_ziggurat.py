"""Ziggurat tables: entries that Go lists, equal areas, the whole tables by checksum."""

import math
import zlib

import numpy as np
import pytest

from blis_jax.workload.go_random import ziggurat


def test_normal_table_has_the_published_entries():
    table = ziggurat.normal()
    assert [hex(value) for value in table.thresholds[:4]] == [
        "0x76ad2212",
        "0x0",
        "0x600f1b53",
        "0x6ce447a6",
    ]
    assert hex(table.thresholds[127]) == "0x77d664e5"
    assert np.float32(table.widths[127]) == np.float32("1.6030948e-09")
    assert table.heights[127] == np.float32("0.0026696292")


def test_exponential_table_has_the_published_entries():
    table = ziggurat.exponential()
    assert [hex(value) for value in table.thresholds[:4]] == [
        "0xe290a139",
        "0x0",
        "0x9beadebc",
        "0xc377ac71",
    ]
    assert hex(table.thresholds[255]) == "0xe6da6ecf"
    assert np.float32(table.widths[255]) == np.float32("1.7921248e-09")
    assert table.heights[255] == np.float32("0.00045413437")


@pytest.mark.parametrize(
    ("table", "sums"),
    [
        (ziggurat.normal, (2920647830, 3289620643, 175509752)),
        (ziggurat.exponential, (703905664, 4039496000, 2685981480)),
    ],
)
def test_tables_are_those_compared_with_go(table, sums):
    """Checksums of tables that were compared with every entry that Go lists."""
    parts = (
        np.array(table().thresholds, np.uint32),
        np.array(table().widths, np.float32),
        np.array(table().heights, np.float32),
    )
    assert tuple(zlib.crc32(part.tobytes()) for part in parts) == sums


@pytest.mark.parametrize(
    ("table", "scale", "area", "tail_area"),
    [
        (
            ziggurat.normal,
            2.0**31,
            ziggurat.NORMAL_AREA,
            math.sqrt(math.pi / 2) * math.erfc(ziggurat.NORMAL_TAIL / math.sqrt(2)),
        ),
        (
            ziggurat.exponential,
            2.0**32,
            ziggurat.EXPONENTIAL_AREA,
            math.exp(-ziggurat.EXPONENTIAL_TAIL),
        ),
    ],
)
def test_layers_have_equal_areas(table, scale, area, tail_area):
    edges = np.array(table().widths[1:]) * scale
    heights = np.array(table().heights, np.float64)
    layers = edges * (heights[:-1] - heights[1:])
    assert np.allclose(layers, area, rtol=1e-4)
    assert math.isclose(edges[-1] * heights[-1] + tail_area, area, rel_tol=1e-6)
