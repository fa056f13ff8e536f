"""Block-level memory: its tables, the names of its contents, and the operations on them."""
