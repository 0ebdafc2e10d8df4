"""Checks, counts and repairs for a damaged state file."""
