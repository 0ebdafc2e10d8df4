"""What is to be delivered, and what was observed, in one SQLite file."""
