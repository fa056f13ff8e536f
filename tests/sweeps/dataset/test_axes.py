import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.workload.spec import load_builtin
from sweeps.dataset.axes import check_axes, column_at, config_at, read_axes, workload_at

MIXED = load_builtin("mixed")


def test_ranges_are_read_and_covered() -> None:
    rate, instances = read_axes("rate=1000:3000, instances=4:6")
    assert (rate.at(0.0), rate.at(0.5)) == (1000, 2000)
    assert [instances.at(share) for share in (0.0, 0.34, 0.99, 1.0)] == [4, 5, 6, 6]
    assert column_at(rate).unit == "requests/s" and column_at(instances).kind == "integer"


def test_workload_follows_the_descriptors() -> None:
    place = {
        "rate": 1500.0, "arrival_cv": 1.0, "share_critical": 0.5, "input_scale": 2.0,
        "output_scale": 0.5, "prefix_share": 0.5,
    }  # fmt: skip
    spec = workload_at(MIXED, place)
    critical, standard, sheddable = spec.clients
    assert spec.aggregate_rate == 1500 and spec.num_requests == MIXED.num_requests
    assert critical.rate_fraction == pytest.approx(0.5)
    assert standard.rate_fraction / sheddable.rate_fraction == pytest.approx(5 / 3)
    assert critical.arrival.cv == 1.0
    assert critical.input_distribution.params.mean == 512
    assert critical.output_distribution.params.mean == 64
    assert critical.prefix_length == 512  # as long as a mean prompt without it


def test_nothing_varied_leaves_the_workload_alone() -> None:
    assert workload_at(MIXED, {"instances": 4}) is MIXED


def test_cluster_follows_the_descriptors() -> None:
    place = {"kv_blocks": 3000, "instances": 4, "token_budget": 1024, "rate": 2000.0}
    config = config_at(ClusterConfig(), place)
    assert config.total_kv_blocks == 3000 and config.num_instances == 4
    assert config.max_num_scheduled_tokens == 1024


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rate", "is not NAME=LOW:HIGH"),
        ("rats=1:2", "did you mean"),
        ("rate=1:2,rate=2:3", "given twice"),
        ("rate=3:2", "low end must be below"),
        ("instances=1.5:3", "not a whole number"),
        ("instances=0:3", "out of range"),
    ],
)
def test_wrong_ranges_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_axes(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("token_budget=768:4096", "parameter of the strategy already"),
        ("share_critical=0.4:0.7,share_standard=0.2:0.5", "shares of the classes reach 1"),
        ("share_batch=0.1:0.2", "unknown"),
    ],
)
def test_axes_that_cannot_be_followed_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_axes(read_axes(text), MIXED, ["max_num_scheduled_tokens"])
