"""Mechanisms of which only descriptions in prose are left: our definitions, on the page "Mechanisms that we define".

No run of another program can be compared with them, so nothing here is called equal to BLIS.
"""
