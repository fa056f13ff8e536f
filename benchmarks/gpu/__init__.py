"""What an H100 would have to do in each scan step, and what lanes of unlike runs cost, without a GPU."""
