"""`python -m papers.routing_evolution.figures FIGURE`: one figure of the routing record, from saved data."""

from __future__ import annotations

import sys

from papers.record.figures import draw_one
from papers.routing_evolution.figures import FIGURES
from papers.routing_evolution.figures.staleness_answers import staleness_map

if __name__ == "__main__":
    sys.exit(draw_one((*FIGURES, staleness_map)))
