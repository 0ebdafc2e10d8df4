"""Access to Service Bus through the SDK, and workarounds for the SDK."""
