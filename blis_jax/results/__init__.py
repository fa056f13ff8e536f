"""Files of figures: labelled datasets, and the texts and files that BLIS prints and writes of a run."""
