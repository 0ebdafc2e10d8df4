"""Sends events to a syslog server, as CEF too."""
