"""Approvals from people and tools, on their way to the approval queue."""
