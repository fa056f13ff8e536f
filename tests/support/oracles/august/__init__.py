"""A cluster of BLIS as of August 2026 in plain Python."""
