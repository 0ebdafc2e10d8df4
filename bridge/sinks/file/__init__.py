"""Writes events to a file, one JSON object per line."""
