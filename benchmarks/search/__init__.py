"""Search engines measured against each other: plan of the repetitions, statistics, report, figure."""
