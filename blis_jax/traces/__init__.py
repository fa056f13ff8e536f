"""Recorded request traces: readers and writers of eight formats around one set of columns."""
