"""Post events to HTTP receivers, in the form that each expects."""
