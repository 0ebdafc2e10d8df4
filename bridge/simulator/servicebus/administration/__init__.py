"""The administration API: entities and rules, as Atom over HTTP."""
