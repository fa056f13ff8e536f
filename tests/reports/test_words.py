"""Names of metrics on pages, in tables and on the terminal come from one table."""

import pytest

from blis_jax.commands.sweep import report
from blis_jax.metrics.scalars import TITLES
from blis_jax.reports import words
from sweeps.reports import words as of_comparisons


@pytest.mark.parametrize("metric", TITLES)
def test_a_metric_has_one_title(metric: str):
    axis = TITLES[metric].axis
    assert words.short_title(metric) == of_comparisons.title(metric) == axis
    assert words.long_title(metric) == TITLES[metric].prose
    if metric not in report.OWN_TITLES:
        assert report.title(metric) == axis


def test_decode_tokens_are_not_called_output_tokens():
    assert words.short_title("tokens_per_sec") == "decode tokens/s"
    assert words.long_title("tokens_per_sec") == "number of decode tokens per second"
