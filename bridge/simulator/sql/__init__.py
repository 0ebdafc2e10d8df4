"""The SQL of subscription rules: filters and actions. Pure, except for newid()."""
