"""Run a command on this machine before an event, and after it."""
