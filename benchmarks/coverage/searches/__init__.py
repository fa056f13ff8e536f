"""What a search ends at, where the truth is known."""
