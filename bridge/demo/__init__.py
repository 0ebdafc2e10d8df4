"""The whole way of an event, to watch on one machine without Azure."""
