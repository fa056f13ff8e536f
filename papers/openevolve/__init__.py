"""The OpenEvolve example of BLIS and its handed-over winner: published numbers again, and on new seeds."""
