"""What a gateway knows of its instances when it routes: snapshots, its prefix index, signals on request."""
