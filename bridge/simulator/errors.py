"""What can go wrong in the simulator. Each text is one sentence for its user."""


class SimulatorError(Exception):
    """The simulator cannot do what it was asked to."""


class ScenarioError(SimulatorError):
    """A scenario that does not exist or cannot be read."""


class BadInputError(SimulatorError):
    """A control request that is not understood."""


class NoSuchEventError(SimulatorError):
    """A control request about an event that is not there."""


class NotLiveError(SimulatorError):
    """A change of events while fixed documents are shown instead of them."""
