"""The compiled simulator: a loop over scan steps, one step of which is the next small thing that happens in the
cluster.

`loop` runs it, `scan_step` chooses the phase, `calendar` says what is due, `context` and `state` are what phases
read and change. `runner/` is the way in, and the one part that imports results, from which it makes records and
figures. The engine imports no command.
"""
