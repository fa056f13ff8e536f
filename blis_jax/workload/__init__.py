"""Request tables, from wherever they come: golden files, YAML specifications, device draws."""
