"""Write events to a file, one JSON object on each line."""
