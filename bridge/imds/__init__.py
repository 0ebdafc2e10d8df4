"""The Instance Metadata Service (IMDS): the client, and the loop that polls it."""
