"""What commands have found, as one document (`findings`), and its text, Markdown and pages (`render`, `page`).

A comparison is a `Study`; `differences` makes its findings. Also one style for figures, and a trace of one run. Nothing
here imports JAX.
"""
