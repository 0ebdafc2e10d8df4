"""Post events to Slack, through an incoming webhook or as a bot."""
