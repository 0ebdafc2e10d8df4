"""A Service Bus-compatible broker over plain AMQP 1.0 on loopback."""
