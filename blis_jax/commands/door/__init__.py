"""`blis-jax`: one name for every command, and what concerns them all: help, completion, options, the doctor.

Names the commands of the outer layers as texts and imports one when it is asked for.
"""
