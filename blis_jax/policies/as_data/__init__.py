"""Policies as data: a routing policy as a table of operations, which one compiled engine runs, whatever the table is."""
