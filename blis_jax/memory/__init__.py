"""KV-cache memory models behind one interface: look up, allocate, release."""
