"""The sinks: one package for each kind, their contract, and their list."""
