"""The server's side of AMQP 1.0: takes bytes, returns events; no socket, no clock."""
