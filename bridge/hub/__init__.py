"""The hub: shows a fleet of bridges, and sends people's decisions to them."""
