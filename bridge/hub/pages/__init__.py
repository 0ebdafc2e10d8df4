"""The pages of the hub: rendered on the server, updated live if JavaScript runs."""
