"""How the house is built: sizes, layers, circles and copies of one idea, counted from the source text of the tree."""
