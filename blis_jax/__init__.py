"""A tensor simulator of LLM inference clusters, equal to BLIS request by request."""
