"""Policies that move requests, and that take instances down and up. BLIS of 2026-02 has none of them."""
