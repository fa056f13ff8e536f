"""From a policy to a Go function: traced, lowered to a graph, planned in loops, written."""
