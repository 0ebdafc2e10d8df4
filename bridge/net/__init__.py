"""HTTP, TLS, Entra ID and the guard against forged addresses."""
