"""Predictions of real servers, with nothing fitted and with what other runs taught, against what was measured."""
