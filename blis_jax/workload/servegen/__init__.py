"""ServeGen data, a folder with two files for each client; and the clients and cohorts that BLIS makes of it."""
