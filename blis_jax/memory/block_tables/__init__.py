"""Block-level memory: its tables, its contents, and the operations on them."""
