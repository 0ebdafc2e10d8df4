"""The hub: one view and one hand for a fleet of bridges."""
