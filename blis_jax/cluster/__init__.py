"""What is simulated: a cluster's configuration, checked once, and groups of instances that differ."""
