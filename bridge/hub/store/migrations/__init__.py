"""The steps of the schema. Each only adds, so the previous hub still runs on it."""
