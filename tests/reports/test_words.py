"""Names of metrics on pages, in tables and on the terminal come from one table."""

import pytest

import blis_jax.metrics.further  # noqa: F401  (registers the metrics of searches)
from blis_jax.metrics.metric import METRICS
from blis_jax.reports import answers, words


@pytest.mark.parametrize("metric", [name for name, one in METRICS.items() if one.title])
def test_a_metric_has_one_title(metric: str):
    title = METRICS[metric].title
    assert title is not None and words.table_title(metric) == title
    assert words.metric_name(metric) == title.split(",")[0]
    if metric not in answers.IN_PERCENT:
        assert answers.metric_title(metric) == title


def test_decode_tokens_are_not_called_output_tokens():
    assert words.table_title("tokens_per_sec") == "decode tokens/s"
    assert words.metric_words("tokens_per_sec") == "decode tokens per second"
