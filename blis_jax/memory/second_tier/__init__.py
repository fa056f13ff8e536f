"""The CPU tier behind the KV cache, as BLIS had it in February 2026 and as it has it in August."""
