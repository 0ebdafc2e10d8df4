"""Packs messages into the SDK's batches, also ahead of time, and sends them."""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.servicebus.errors import failures

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
    from azure.servicebus.aio import ServiceBusSender


@dataclass(slots=True, eq=False)
class Waiting:
    """A message for which a caller of ``send`` waits, and its result."""

    message: "ServiceBusMessage"
    size: int
    pack: "Pack | None" = None
    is_done: bool = False
    error: Exception | None = None

    @property
    def session(self) -> str | None:
        """The SessionId, which is the partition key, too."""
        return self.message.session_id


@dataclass(slots=True)
class Pack:
    """A batch that was packed while another one was on its way.

    Attributes:
        sender: the link that must send the batch; another link may accept less.
        members: the messages in the batch; ``pack`` of the first one is this batch.
        packed: the batch of the SDK.
    """

    sender: "ServiceBusSender"
    members: list[Waiting]
    packed: "ServiceBusMessageBatch"

    def fits(self, sender: "ServiceBusSender", batch: list[Waiting]) -> bool:
        """Return whether ``batch`` begins with the packed messages, for this link."""
        is_first = batch[: len(self.members)] == self.members
        return sender is self.sender and is_first


async def transfer(
    sender: "ServiceBusSender", batch: list[Waiting], seconds: float
) -> int:
    """Send as many messages as fit into one transfer; return how many.

    Args:
        sender: an open link.
        batch: the messages in their order; at least one.
        seconds: the time limit of the transfer.
    """
    if len(batch) > 1:
        pack, batch[0].pack = batch[0].pack, None
        if pack is None or not pack.fits(sender, batch):
            pack = await _packed(sender, batch)
        count = len(pack.members)
        if count > 1:
            await sender.send_messages(pack.packed, timeout=seconds)
            return count
    await sender.send_messages(batch[0].message, timeout=seconds)
    return 1


async def pack_ahead(sender: "ServiceBusSender", batch: list[Waiting]) -> None:
    """Pack a batch for later; errors show when it is sent."""
    with suppress(*failures()):
        batch[0].pack = await _packed(sender, batch)


async def _packed(sender: "ServiceBusSender", batch: list[Waiting]) -> Pack:
    """Pack as many messages as fit into one transfer."""
    packed, members = await sender.create_message_batch(), list[Waiting]()
    for waiting in batch:
        try:
            packed.add_message(waiting.message)
        except ValueError:  # MessageSizeExceededError, a subclass: the batch is full
            break
        members.append(waiting)
    return Pack(sender, members, packed)
