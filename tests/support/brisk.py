"""The Service Bus SDK without the naps that it takes while it opens and closes.

It waits for each step of an opening in naps of 50 ms, ten in all, and a closing waits
for its ping task, which looks up once a second. What is sent is the same without them;
no test lasts long enough for a ping.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from azure.servicebus._pyamqp.aio import AMQPClientAsync
from azure.servicebus.aio import _servicebus_receiver_async, _servicebus_sender_async


class BriskAsyncio:
    """asyncio as the SDK's modules see it, with naps of a fiftieth of their length."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(delay: float) -> None:
        await asyncio.sleep(delay / 50)


@contextmanager
def without_naps() -> Iterator[pytest.MonkeyPatch]:
    """Spare the naps meanwhile; yields what undoes further patches, too."""

    async def nothing(client: AMQPClientAsync) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AMQPClientAsync, "_keep_alive_async", nothing)
        for module in (_servicebus_sender_async, _servicebus_receiver_async):
            patch.setattr(module, "asyncio", BriskAsyncio())
        yield patch


@pytest.fixture
def brisk_sdk() -> Iterator[None]:
    """Spare the naps for a test."""
    with without_naps():
        yield
