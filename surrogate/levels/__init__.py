"""What seeds do to the level of a metric, learned from their requests and a baseline's runs."""
