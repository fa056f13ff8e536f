from __future__ import annotations

from pathlib import Path

import pytest

from surrogate.data import Data
from surrogate.fitting.network import Settings
from surrogate.predictor import Surrogate
from tests.surrogate import made_data


@pytest.fixture(scope="package")
def settings() -> Settings:
    return Settings(members=2, width=16, depth=2, steps=600, batch=32)


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_data.write(tmp_path_factory.mktemp("made") / "made.zarr", (192, 96, 96))


@pytest.fixture(scope="package")
def data(store: Path) -> Data:
    from surrogate.data import load_data

    return load_data(store)


@pytest.fixture(scope="package")
def surrogate(data: Data, settings: Settings) -> Surrogate:
    from surrogate.fitting.learn import learn

    about = {"num_points": len(data.train.inputs), "data": "made", "data_identity": data.about}
    return learn(data, settings, about=about)
