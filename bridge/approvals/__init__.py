"""What comes back: approvals from the queue, relayed to IMDS."""
