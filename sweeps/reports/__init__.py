"""How reports of comparisons name metrics and print numbers and intervals."""
