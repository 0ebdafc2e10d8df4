"""The Instance Metadata Service: its documents and its client."""
