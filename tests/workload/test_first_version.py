"""Files of version 1: read as version 2, with a warning for each renamed class."""

import warnings

import pytest

from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.workload.spec import parse_spec

CLIENT = """
  - slo_class: {}
    rate_fraction: 1.0
    arrival: {{process: poisson}}
    input_distribution: {{type: constant, params: {{value: 20}}}}
    output_distribution: {{type: constant, params: {{value: 20}}}}"""


def text_of(version, *classes):
    clients = "".join(CLIENT.format(name) for name in classes)
    return f"{version}\naggregate_rate: 5\nnum_requests: 3\nclients:{clients}\n"


@pytest.mark.parametrize(
    "version", ["version: '1'", "version: 1", "version: 1.0", "version: ''", "version:", ""]
)
def test_classes_of_version_1_are_renamed(version):
    with pytest.warns(ConfigWarning) as caught:
        spec = parse_spec(text_of(version, "realtime", "batch", "interactive"), "w.yaml")
    assert spec.version == "2"
    assert [client.slo_class for client in spec.clients] == ["critical", "batch", "standard"]
    assert [str(warning.message) for warning in caught] == [
        "w.yaml: clients[0].slo_class: 'realtime' is a name of version 1 and read as 'critical'; "
        "write 'critical' and version '2'",
        "w.yaml: clients[2].slo_class: 'interactive' is a name of version 1 and read as "
        "'standard'; write 'standard' and version '2'",
    ]


def test_nothing_is_said_where_no_name_has_changed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = parse_spec(text_of("version: '1'", "critical", "''"))
    assert [client.slo_class for client in spec.clients] == ["critical", ""]


@pytest.mark.parametrize("version", ["version: '2'", "version: 2", "version: '2.0'"])
def test_version_2_does_not_know_the_older_names(version):
    with pytest.raises(ConfigError, match=r"clients\[0\].slo_class: got 'realtime'"):
        parse_spec(text_of(version, "realtime"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nclients: 3", "clients: got 3"),
        ("version: 1\naggregate_rate: 1\nclients: [3]", "clients.0.: got 3"),
        (text_of("version: 1", "[realtime]"), "clients.0..slo_class: got"),
        ("version: 1\naggregate_rate: 1", "clients: no client is given"),
    ],
)
def test_files_of_version_1_are_checked_like_others(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_spec(text)
