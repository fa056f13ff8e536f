"""Routers that genetic programming bred, against the published winner, `it08_opt` and row 21 of the ledger."""
