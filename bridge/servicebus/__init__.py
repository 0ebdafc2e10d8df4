"""Service Bus, as the SDK wants it."""
