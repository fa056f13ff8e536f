"""The sources of events that a program may have; `listed` chooses those that its mechanism has a use for."""
