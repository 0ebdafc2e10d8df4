"""Azure's own word on scheduled events: Resource Manager, and Event Grid."""
