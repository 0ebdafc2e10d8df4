"""What the hub shows in a browser: made on the server, live where it can be."""
