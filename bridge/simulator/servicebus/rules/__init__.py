"""The rules of subscriptions: which messages they admit, and how they change them."""
