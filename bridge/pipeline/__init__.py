"""The workers between IMDS and the sinks: they observe documents, deliver events."""
