"""The results of commands as one document (`findings`), rendered as text, Markdown and pages (`render`, `page`).

A comparison is a `Study`; `differences` turns it into findings. Also a common style for figures (`style`), and traces
of single runs (`perfetto`). Nothing here imports JAX.
"""
