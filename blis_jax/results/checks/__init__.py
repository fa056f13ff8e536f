"""What must hold in every run, counted as violations."""
