"""What the process consists of: composition and start."""
