"""Time, errors, values and loops: nothing of the domain."""
