"""How often intervals hold what is true: of means, ratios, one trace's requests, and calibrations."""
