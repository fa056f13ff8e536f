"""Admission policies: accept or turn away a request at the gateway."""
