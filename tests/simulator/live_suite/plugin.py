"""Stands in for what the suite imports of Azure's own test tools.

python -m tests.simulator.live_suite FOLDER_OF_THE_SDIST [ARGUMENTS OF PYTEST]
"""

import sys
from types import ModuleType
from typing import Any

from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import (
    ServiceBusSharedKeyCredential as AsyncSharedKeyCredential,
)

from bridge.simulator.servicebus.access import Right
from tests.simulator.live_suite import place, preparers


def get_credential(*, is_async: bool = False, **_: Any) -> Any:
    """Return the root key of the broker: there is no Entra ID here."""
    kind = AsyncSharedKeyCredential if is_async else ServiceBusSharedKeyCredential
    return kind(*place.HERE.credential)


class AzureMgmtRecordedTestCase:
    """What the suite's classes inherit from."""

    await_prepared_test = staticmethod(lambda test: test)


class _Anything(ModuleType):
    """A module that has everything, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: Any, **__: Any) -> Any:
    return _nothing


def _put(name: str, **members: Any) -> None:
    module = _Anything(name)
    module.__dict__.update(members, __path__=[])
    sys.modules[name] = module


_put(
    "devtools_testutils",
    AzureMgmtRecordedTestCase=AzureMgmtRecordedTestCase,
    AzureRecordedTestCase=AzureMgmtRecordedTestCase,
    RandomNameResourceGroupPreparer=preparers.ServiceBusResourceGroupPreparer,
    get_credential=get_credential,
)
for _name in ("aio", "sanitizers", "resource_testcase"):
    _put(f"devtools_testutils.{_name}")
for _name in ("common", "mgmt", "mgmt.resource"):
    _put(f"azure.{_name}")


class _Rights:
    listen, send, manage = Right.LISTEN, Right.SEND, Right.MANAGE
    LISTEN, SEND, MANAGE = Right.LISTEN, Right.SEND, Right.MANAGE


_put("azure.mgmt.servicebus")
_put("azure.mgmt.servicebus.models", AccessRights=_Rights)
_put("azure.common", AzureHttpError=Exception, AzureConflictHttpError=Exception)
sys.modules["servicebus_preparer"] = preparers


def pytest_configure(config: Any) -> None:
    """Open the place, and name the suite's marks."""
    for mark in ("liveTest", "live_test_only", "playback_test_only"):
        config.addinivalue_line("markers", f"{mark}: of the suite")
    place.HERE.open()


def pytest_unconfigure() -> None:
    """Close the place."""
    place.HERE.close()
