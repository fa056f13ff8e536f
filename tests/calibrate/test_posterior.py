from pathlib import Path

import numpy as np
import pytest

from blis_jax.calibrate.posterior import coefficients_of, load
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json


def _document(**changes):
    return {
        "kind": "calibration",
        "terms": ["beta0", "beta1", "beta3"],
        "coefficients": {
            "beta0": {"value": 5000.0},
            "beta1": {"value": 20.0},
            "beta3": {"value": 0.1},
        },
        "covariance": [[1e4, -5.0, 0.0], [-5.0, 1.0, 0.0], [0.0, 0.0, 1e-4]],
        **changes,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_json(tmp_path / "fit.json", _document())
    return tmp_path / "fit.json"


def test_draws_have_the_covariance_of_the_fit(path: Path):
    """20,000 draws; each deviation and correlation within 3 %: a false alarm in fewer than 1 of 10⁴."""
    posterior = load(path)
    draws = posterior.draws(20_000, 0)
    np.testing.assert_array_equal(draws, posterior.draws(20_000, 0))
    assert draws.mean(axis=0) == pytest.approx(posterior.values, rel=3e-3)
    assert draws.std(axis=0) == pytest.approx([100.0, 1.0, 0.01], rel=0.03)
    assert np.corrcoef(draws[:, 0], draws[:, 1])[0, 1] == pytest.approx(-0.05, abs=0.03)
    assert np.all(draws >= 0)


def test_a_configuration_takes_the_fit_or_a_draw(path: Path):
    posterior = load(path)
    config = posterior.configured(ClusterConfig())
    assert config.beta_coeffs == (5000.0, 20.0, 0.0, 0.1) and config.alpha_coeffs == (0, 0, 0)
    assert config.latency_model == "blackbox-context"
    in_routing = posterior.configured(ClusterConfig(variant="routing"))
    assert in_routing.latency_model == "blackbox-context"
    drawn = posterior.configured(ClusterConfig(), np.array([4000.0, 21.0, 0.2]))
    assert drawn.beta_coeffs == (4000.0, 21.0, 0.0, 0.2)


def test_three_terms_of_beta_without_a_cost_of_context():
    assert coefficients_of({"alpha1": 2.0, "beta2": 3.0}) == ((0.0, 2.0, 0.0), (0.0, 0.0, 3.0))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "search"}, "is not a calibration"),
        (_document(terms=["gamma"]), "is damaged"),
        (_document(latency_model="blackbox-attention"), "is damaged"),
        (_document(covariance=[[1.0]]), "is damaged"),
        (_document(coefficients={"beta0": {"value": -1.0}}), "is damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, document: dict, words: str):
    write_json(tmp_path / "other.json", document)
    with pytest.raises(ConfigError, match=words):
        load(tmp_path / "other.json")


def test_no_json(tmp_path: Path):
    (tmp_path / "fit.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        load(tmp_path / "fit.json")
