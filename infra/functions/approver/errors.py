"""The errors of this app."""


class ApproverError(Exception):
    """The base class; its text never holds a secret, or any input from outside."""


class SettingsError(ApproverError):
    """The app settings are wrong; the text names all faults."""


class UnreadableError(ApproverError):
    """A message, a request or a button does not have the expected form."""
