"""Off-load tiers of August's revision: CPU memory and the storage behind it, see `waits.py` and `copies.py`."""
