"""Read and write files: writes that appear whole or not at all, manifests, locks, and checks of a user's files.

Of the simulator, only its errors are imported here.
"""
