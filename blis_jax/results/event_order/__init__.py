"""The order of events of one microsecond on an instance, where the reference's answer depends on it."""
