"""Approvals: messages and rules that lead to StartRequests at IMDS."""
