"""The bot in Microsoft Teams: a card for each event, with Approve and Refuse."""
