"""What can be wrong with what others send, and with the settings."""


class ApproverError(Exception):
    """The root; its text never holds a secret, and nothing that others sent."""


class SettingsError(ApproverError):
    """The app settings are wrong; the text names all that are."""


class UnreadableError(ApproverError):
    """A message, a request or a button is not of the form it should have."""
