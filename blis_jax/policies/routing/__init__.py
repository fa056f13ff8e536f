"""Routing policies: choose the instance for an admitted request.

`context.scores` is the weighted sum of the scorers, or zeros; `context.picked` is the instance that the picker chose by
these scores.
"""
