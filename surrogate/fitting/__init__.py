"""How a surrogate is made of a dataset: features, targets, the network, the ensemble and its calibration."""
