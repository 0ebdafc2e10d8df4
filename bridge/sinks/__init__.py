"""Where events go: one file per sink, and the registry that lists them."""
