"""Routing policies as data: tables of operations, which one compiled engine runs, whatever the table is."""
