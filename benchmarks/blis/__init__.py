"""Random command lines of BLIS, by BLIS itself and here."""
