"""A local Azure Resource Manager and Event Grid, for scheduled events."""
