"""Gives up root's rights before a command opens what the service has left.

``bridge.foundation.privileges`` knows when, and is asked wherever a file is opened.
Here it is asked early, as soon as the configuration is read. Secrets that the account
of the service may not read itself are kept in memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from bridge.configuration.config import Settings
from bridge.foundation import privileges
from bridge.foundation.sections import Section
from bridge.foundation.values import FilePath, Secret


def enter(config: Settings) -> int | None:
    """Become the account of the state file of a forwarder; see ``enter_for``."""
    return enter_for(config, Path(config.state.path))


def enter_for(config: Section, *files: Path) -> int | None:
    """Become the account to which the folder of a file belongs, if this is root.

    Args:
        config: the configuration; its secrets stay known.
        files: the files that will be opened.

    Returns:
        The uid of the account that this process has become; None: it is what it was.

    Raises:
        ForeignFolderError: root must not open one of the files.
    """
    if any(map(privileges.leaves_root, files)):
        for one in _references(config):
            one.hold()
    found = [privileges.enter(file) for file in files]
    return next((uid for uid in found if uid is not None), None)


def _references(value: object) -> Iterator[Secret | FilePath]:
    """Yield all secrets and paths of certificates in a part of a configuration."""
    if isinstance(value, Secret | FilePath):
        yield value
    elif isinstance(value, Section):
        for key in value.__struct_fields__:
            yield from _references(getattr(value, key))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _references(item)
