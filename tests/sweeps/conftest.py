"""Fixtures of the commands that compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweeps.busy import write_strategies
from tests.sweeps.tiny import TINY


@pytest.fixture
def strategy(tmp_path: Path) -> Path:
    """A file of the small strategy."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture
def arms(tmp_path: Path) -> tuple[str, str]:
    """Paths of two strategies, without and with priorities."""
    return write_strategies(tmp_path)
