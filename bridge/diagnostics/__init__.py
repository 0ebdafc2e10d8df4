"""Whether all is well: the doctor, the status and dry runs."""
