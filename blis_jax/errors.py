"""The error and the warning that a user's input can cause."""


class ConfigError(ValueError):
    """Input that cannot be used; its sentence says what was given, what is allowed, the fix."""


class ConfigWarning(UserWarning):
    """Input that is used, but not as it was written; its sentence says how, and the fix."""
