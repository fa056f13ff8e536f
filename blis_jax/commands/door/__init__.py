"""`blis-jax`: one entry point for every command, with help, completion, options and the doctor.

Modules of commands are named as texts, and imported when a command is called.
"""
