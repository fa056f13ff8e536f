"""Collections of measured runs: what each row asks for, and the load behind it."""
