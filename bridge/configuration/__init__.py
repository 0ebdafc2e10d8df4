"""One file in, all faults out."""
