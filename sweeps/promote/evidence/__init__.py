"""Evidence: benchmark reports, read or made by simulation, and the verdicts that they give."""
