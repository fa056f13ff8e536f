"""The scheduling record of strategy evolution: every published row again, and what survives of it."""
