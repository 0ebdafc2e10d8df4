"""Accept approvals from people and tools, and send them to the approval queue."""
