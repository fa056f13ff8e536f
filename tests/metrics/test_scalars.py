"""Names of metrics: taken apart, put together, and looked up."""

import pytest

from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import names_in, split_name
from blis_jax.metrics.scalars import lookup


def test_a_name_and_its_class_are_taken_apart_and_put_together() -> None:
    assert split_name("ttft_p99_ms[critical]") == ("ttft_p99_ms", "critical")
    assert split_name("ttft_p99_ms") == ("ttft_p99_ms", None)
    assert split_name("ttft_p99_ms[critical") == ("ttft_p99_ms[critical", None)
    assert names_in(("a", "b"), ("all", "critical")) == ("a", "b", "a[critical]", "b[critical]")
    with pytest.raises(ConfigError, match="is unknown"):
        lookup("ttft_p99_ms[critical")
