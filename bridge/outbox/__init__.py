"""The state file: observations, deliveries and decisions in one SQLite file."""
