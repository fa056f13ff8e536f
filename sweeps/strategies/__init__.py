"""Strategies: files of them (`file`, `library/`), their search spaces, and arms that commands compare."""
