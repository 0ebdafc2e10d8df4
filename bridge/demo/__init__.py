"""The whole way of an event, shown on one machine without Azure."""
