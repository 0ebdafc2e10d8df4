"""Send events to a syslog server, also as CEF."""
