"""`python -m sweeps.select`: the best of several arms, with a stated probability of being right."""
