"""AMQP 1.0, the side of a server: bytes in, events out, no sockets and no clock."""
