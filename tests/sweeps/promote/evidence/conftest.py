"""Most tests take the saturation as known; what is measured has a test of its own."""

from __future__ import annotations

import pytest

from sweeps.promote.evidence import tracks


@pytest.fixture
def known_saturation(monkeypatch: pytest.MonkeyPatch) -> float:
    """100 requests/s, whatever the cluster."""
    monkeypatch.setattr(tracks, "saturation_rate", lambda *_: 100.0)
    return 100.0
