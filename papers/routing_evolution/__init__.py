"""The record of the routing track: every published row again, and what survives of it at equal conditions."""
