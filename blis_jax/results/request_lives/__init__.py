"""Requests that were preempted, moved, handed over or kept waiting: what that leaves in their records."""
