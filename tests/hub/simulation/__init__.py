"""Two hubs on one store that die at any moment, and a judge of what they send."""
