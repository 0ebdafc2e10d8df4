"""The traffic probe: says whether a load balancer may send this VM work."""
