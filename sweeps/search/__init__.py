"""Search of a strategy's parameters, and answers to optimisers outside."""
