"""Laws that the reference draws from: gaps, lengths, rates, deadlines."""
