"""Send events to a Service Bus topic or queue."""
