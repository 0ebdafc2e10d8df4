"""The traffic probe: tells a load balancer whether this VM is in rotation."""
