"""A receiver for webhooks and Slack messages."""
