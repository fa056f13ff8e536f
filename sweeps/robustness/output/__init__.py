"""What a robustness map says: sentences, a document, a table, regimes as a tree, and the picture."""
