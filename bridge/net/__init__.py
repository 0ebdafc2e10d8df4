"""HTTP, TLS, Entra ID, and the guard against forbidden addresses."""
