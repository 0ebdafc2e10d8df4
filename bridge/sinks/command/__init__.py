"""A command on this machine: run before an event, and after it."""
