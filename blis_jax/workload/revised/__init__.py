"""Workload files as BLIS's revision of August 2026 reads them; imports what the first revision has."""
