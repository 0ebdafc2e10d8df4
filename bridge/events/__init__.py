"""What is said: documents, transitions and CloudEvents. Pure."""
