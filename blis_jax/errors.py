"""The error that a user's input can cause."""


class ConfigError(ValueError):
    """Input that cannot be used; its sentence says what was given, what is allowed, the fix."""
