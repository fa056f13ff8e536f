"""The sources of events that a program may have; `listed` selects the ones that its mechanism needs."""
