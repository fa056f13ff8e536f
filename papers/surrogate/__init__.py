"""How good surrogates of three spaces are, beside their rivals."""
