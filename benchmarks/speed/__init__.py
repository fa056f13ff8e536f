"""What `python -m benchmarks` times: each case in a process of its own, and two revisions side by side."""
