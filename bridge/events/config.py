"""The section ``[events]``: the names of the events, and which are published."""

import re
from collections.abc import Iterator
from typing import Literal

from bridge.events.cloudevent import link_fault
from bridge.foundation.sections import Section
from bridge.foundation.values import Duration


class EventsConfig(Section, frozen=True, kw_only=True):
    """``[events]``: the names of the events, and which are published.

    Attributes:
        type_prefix: the start of the type of every event. Example: ``"sebridge"``.
        source: the source of every event. If it is "", the source is made from instance
            metadata and is the same for all VMs of a resource group. Example:
            ``"/contoso/web"``.
        scope: "all": publish every event of the document; "own": only those that name
            this VM.
        documents: whether to publish a document.changed event for each change of the
            document, too.
        heartbeat: how often to publish a bridge.heartbeat event, so that a receiver
            notices when the bridge is silent; 0 means never.
        sign: whether to sign every event with a key of this bridge, which lies beside
            the state file.
        link: the address at which people read about an event, such as the page of a
            hub. It becomes data.link, with the EventId in place of {event_id}. Slack,
            Teams and mail show it. "" means no link. Example:
            ``"https://maintenance.contoso.com/events/{event_id}"``.
    """

    type_prefix: str = "sebridge"
    source: str = ""
    scope: Literal["all", "own"] = "all"
    documents: bool = False
    heartbeat: Duration = Duration(0)
    sign: bool = False
    link: str = ""

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the prefix, the source, the heartbeat and the link."""
        if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9.-]*", self.type_prefix):
            yield "type_prefix", "must be letters, digits, dots and hyphens"
        if re.search(r"[^\x21-\x7e]", self.source):
            yield "source", "must be a URI reference: no spaces, ASCII only"
        if 0 < self.heartbeat < 1:
            yield "heartbeat", 'must be "0s" (off) or at least 1s'
        if self.link and (what := link_fault(self.link)):
            yield "link", what
