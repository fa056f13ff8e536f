"""What one run did: requests, steps and instances, read from the engine's tables, and what must hold of them."""
