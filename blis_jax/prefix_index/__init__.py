"""The router's prefix index: blocks that it believes each instance to have, and how late it hears of them."""
