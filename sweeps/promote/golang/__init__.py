"""Compile a policy to Go: trace it to a jaxpr, write a plugin of the endpoint picker, test it against the policy."""
