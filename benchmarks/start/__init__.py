"""Where the seconds of a whole command go until its answer."""
