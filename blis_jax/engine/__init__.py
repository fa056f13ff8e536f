"""The compiled simulator: a loop over scan steps, one step of which is the next small thing that happens in the
cluster.

`loop` runs it, `scan_step` chooses the phase, `calendar` says what is due, `context` and `state` are what phases
read and change. `runs` is the way in. The engine imports policies, latency, memory and workloads, never results,
metrics or commands.
"""
