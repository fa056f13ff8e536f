"""Admission, routing, priority and scheduling policies: one small pure function each."""
