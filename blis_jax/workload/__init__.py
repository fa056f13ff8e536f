"""Request tables, built from golden files, YAML specifications, or draws on the device."""
