"""The schema, step by step: each step only adds, so that the hub before it runs on."""
