"""What a run did: records of requests and steps, checks, figures, datasets, and the files that BLIS writes.

Plain numpy on the host. Results read the engine's raw tables; the engine imports nothing from here.
"""
