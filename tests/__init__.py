"""Tests; they mirror the tree of the packages."""
