"""Evidence: benchmark reports, measured or simulated, and the verdicts on hypotheses that follow from them."""
