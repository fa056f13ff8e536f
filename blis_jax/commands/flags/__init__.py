"""Groups of options that several commands share: one name, one meaning, one default."""
