"""Forwards Azure Scheduled Events from the VM to the systems that act on them."""

__version__ = "0.1.0"
