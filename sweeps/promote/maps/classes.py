"""SLO classes in llm-d: the priority of each class's objective."""

from __future__ import annotations

# llm-d: higher is more important, below 0 may be shed
CLASS_PRIORITY = {"critical": 4, "standard": 3, "batch": -1, "sheddable": -2, "background": -3}
UNCLASSED_PRIORITY = 0  # of requests without an objective
