"""A policy becomes Go: traced to a jaxpr, compiled to a plugin of the endpoint picker, tested against the policy."""
