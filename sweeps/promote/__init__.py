"""Promotion: a strategy that won in simulation becomes a change that llm-d's maintainers can review."""
