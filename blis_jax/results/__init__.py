"""Files of results: labelled datasets, and the texts and files that BLIS prints and writes for a run."""
