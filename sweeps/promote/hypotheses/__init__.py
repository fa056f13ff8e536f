"""Hypotheses of a promotion: what must hold on a cluster (A), what may break it (B), what must not change (C)."""
