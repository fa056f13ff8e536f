"""Other simulators of the package index beside this one, on the same requests and the same step law."""
