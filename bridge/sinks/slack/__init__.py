"""Posts events to Slack, by a webhook or as a bot."""
