"""A local Microsoft Teams: a bot posts to it, and it calls the bot on a click."""
