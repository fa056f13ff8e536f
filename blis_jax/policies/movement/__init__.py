"""Policies that move requests between instances or change which instances are up. BLIS of 2026-02 has none of them."""
