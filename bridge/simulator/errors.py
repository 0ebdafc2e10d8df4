"""What the simulator refuses to do, in one sentence for people."""


class SimulatorError(Exception):
    """Wrong input to the simulator, or a port that is taken."""
