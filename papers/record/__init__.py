"""What the reproductions of published records share: claims as data, runs that are kept, tables, verdicts."""
