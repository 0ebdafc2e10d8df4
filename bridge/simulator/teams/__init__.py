"""A local Microsoft Teams: what a bot posts to, and what calls it on a click."""
