"""Claims about metrics: one grammar, one judge, and the words of its verdicts."""
