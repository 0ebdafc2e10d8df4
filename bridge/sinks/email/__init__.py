"""Mail over SMTP: one message for each event, one thread for each EventId."""
