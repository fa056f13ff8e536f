"""Lengths of prompts and outputs: the laws, what bounds them, and their distributions."""
