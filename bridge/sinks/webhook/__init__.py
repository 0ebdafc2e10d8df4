"""Posts events to HTTP receivers, in the forms that they expect."""
