"""Signatures of CloudEvents: who has said it, and whether it was changed."""
