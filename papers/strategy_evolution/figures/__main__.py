"""`python -m papers.strategy_evolution.figures FIGURE`: one figure of the scheduling record, from saved data."""

from __future__ import annotations

import sys

from papers.record.figures import draw_one
from papers.strategy_evolution.figures import FIGURES

if __name__ == "__main__":
    sys.exit(draw_one(FIGURES))
