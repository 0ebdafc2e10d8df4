"""The SQL of subscription rules: filters and actions. Pure, but for newid()."""
