"""Maps of a promotion: what every setting, policy and signal is in llm-d, and what has no model on one side."""
