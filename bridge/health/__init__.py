"""What the bridge says of itself: the port, the page, the table."""
