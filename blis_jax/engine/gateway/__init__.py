"""What the gateway keeps and decides with: its queue, its signals, its routers."""
