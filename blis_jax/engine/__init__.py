"""The compiled simulator: a loop over scan steps, one step of which is the next small thing that happens in the
cluster.

`loop` runs it, `calendar` says which of the `sources` of events is next, and `phases` do it; what they read and change
is in `tables`. `runs` is the way in. The engine imports memory, tables, policies, latency and workloads, never results,
metrics or commands.
"""
