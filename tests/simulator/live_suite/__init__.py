"""azure-servicebus's own live tests, run by hand against the local broker."""
