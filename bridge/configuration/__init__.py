"""Read the configuration from one file and the environment; report all faults."""
