"""Time, errors, values and loops. Nothing here knows about scheduled events."""
