"""The random numbers of Go's `math/rand`, seed by seed and draw by draw, on the host."""
