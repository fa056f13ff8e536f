"""Plain replays of what the engine must do."""
