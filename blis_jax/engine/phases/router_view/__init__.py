"""What a gateway knows of its instances when it routes: snapshots, and signals on request."""
