"""Both tracks together: the winners of each on the workloads of both, and which to take where."""
