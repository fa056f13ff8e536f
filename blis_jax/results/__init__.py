"""What a run did: records of requests and steps, checks, figures, datasets, and the files that BLIS writes.

Plain numpy on the host, but for `metrics.on_device`. Results read the engine's raw tables; of the engine, only
`runner/` imports results.
"""
