"""Observes documents, delivers events: the workers between IMDS and the sinks."""
