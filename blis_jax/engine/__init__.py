"""The compiled simulator: a loop over scan steps, each of which is the next small thing that happens in the cluster.

`loop` runs the scan steps, `calendar` finds which of the `sources` of events is next, and `phases` compute the changes;
the state that they read and change is in `tables`. `runs` is the entry point. The engine imports memory, tables,
policies, latency and workloads, never results, metrics or commands.
"""
