"""What webhooks are made of: contents, and how one is trusted with them."""
