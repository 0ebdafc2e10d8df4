"""A receiver for webhooks, Slack and Teams messages."""
