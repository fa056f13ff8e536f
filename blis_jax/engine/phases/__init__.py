"""The phases of a scan step: a request is admitted, routed or moved; an instance starts or ends a step.

Phases are pure functions on typed rows (`tables`). They call policies, a latency model and a memory model through
interfaces, and depend on none in particular.
"""
