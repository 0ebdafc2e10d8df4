"""The whole configuration: a field for each table, and the checks across tables."""

import os
from collections.abc import Callable, Iterator
from itertools import product
from typing import Self, TypeVar

from msgspec.structs import replace

from bridge.approvals.config import ApprovalsConfig
from bridge.configuration.lint import (
    assumptions,
    doubts_of,
    hidden_outcomes,
    literal_secrets,
    misspelt_words,
    odd_replies,
    odd_rules,
    odd_waits,
    own_outcomes,
    secrets_in,
    short_stops,
)
from bridge.events.config import EventsConfig
from bridge.events.identity import IdentityConfig
from bridge.foundation.errors import ConfigError
from bridge.foundation.sections import Section
from bridge.foundation.values import Duration, Secret, placeholder_faults
from bridge.health.config import HttpConfig
from bridge.imds.config import ImdsConfig
from bridge.outbox.statefile import StateConfig
from bridge.sinks.base import SinkConfig
from bridge.telemetry.metrics import LogConfig
from bridge.traffic.config import TrafficConfig

_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - compared with  # nosec B104


_LOOP = "the bridge would receive its own events as approvals"


class Settings(Section, frozen=True, kw_only=True):
    """Everything except sinks and approvals, which need secrets of the service.

    Attributes:
        shutdown_grace: how long a stop waits for deliveries in flight; the rest stays
            in the outbox.
        imds: where and how often the document of scheduled events is read. Example:
            ``{"poll_interval": "1s"}``.
        events: names of the events, and which are published. Example: ``{"scope":
            "own"}``.
        identity: the identity of this VM, in place of instance metadata. Example:
            ``{"vm_name": "web-1"}``.
        state: the state file: its path, its size, and how long it keeps rows. Example:
            ``{"path": "/var/lib/sebridge/state.db"}``.
        http: where the health port listens. Example: ``{"listen": "127.0.0.1:9465"}``.
        log: the level and format of the log. Example: ``{"level": "info"}``.
        traffic: the probe by which a load balancer asks whether this VM takes traffic;
            left out: no probe. Example: ``{"listen": "0.0.0.0:9466"}``.
    """

    shutdown_grace: Duration = Duration(10)
    imds: ImdsConfig = ImdsConfig()
    events: EventsConfig = EventsConfig()
    identity: IdentityConfig = IdentityConfig()
    state: StateConfig = StateConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    traffic: TrafficConfig | None = None


class Config(Settings, frozen=True, kw_only=True):
    """A whole configuration without faults.

    Attributes:
        sinks: where events go. Example: ``[{"name": "ops", "type": "slack",
            "webhook_url": "env:SLACK_WEBHOOK_URL"}]``.
        approvals: where approvals are received from, and what they may start; left out:
            this bridge relays no approvals. Example: ``{"namespace":
            "contoso.servicebus.windows.net", "queue": "vm-approvals"}``.
    """

    sinks: tuple[SinkConfig, ...] = ()
    approvals: ApprovalsConfig | None = None

    @property
    def approval_entity(self) -> ApprovalsConfig | None:
        """The entity that approvals are received from; None if there is none."""
        approvals = self.approvals
        return approvals if approvals and approvals.has_entity else None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check entity names, and that no sink sends to the approval entity."""
        for place, section in self._parts():
            for key, name in section.entities.items():
                for what in placeholder_faults(name):
                    yield f"{place}.{key}", what
        yield from self._loops()
        yield from self._shared_files()
        yield from self._shared_port()

    def filled_in(self, expand: Callable[[str], str]) -> Self:
        """Return the configuration with the placeholders in entity names filled in.

        Args:
            expand: fills in ``{vm_id}``, ``{vm_name}``, ``{group}``; raises ValueError.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        sinks = tuple(_named(s, f"sinks.{s.name}", expand) for s in self.sinks)
        approvals = self.approvals and _named(self.approvals, "approvals", expand)
        return replace(self, sinks=sinks, approvals=approvals)

    def _parts(self) -> Iterator[tuple[str, SinkConfig | ApprovalsConfig]]:
        for sink in self.sinks:
            yield f"sinks.{sink.name}", sink
        if self.approvals is not None:
            yield "approvals", self.approvals

    def _loops(self) -> Iterator[tuple[str, str]]:
        """Refuse a sink that sends to the approval entity."""
        if self.approval_entity is None:
            return
        inlet = self.approval_entity.target
        for sink in self.sinks:
            if (target := sink.target) == inlet:
                place = f"sinks.{sink.name}.{target.key}"
                yield place, f"must not be approvals.{inlet.key}: {_LOOP}"

    def _shared_files(self) -> Iterator[tuple[str, str]]:
        """Refuse a file that is the state file or another sink's."""
        owners = {os.path.realpath(self.state.path): "the state file"}
        for sink in self.sinks:
            if (file := sink.file) is None:
                continue
            if file in owners:
                yield f"sinks.{sink.name}.path", f"is the file of {owners[file]}"
            owners.setdefault(file, f"sinks.{sink.name}")

    def _shared_port(self) -> Iterator[tuple[str, str]]:
        """Refuse one port for both the health port and the traffic probe."""
        if self.traffic is None or not self.http.listen:
            return
        for mine, other in product(self.traffic.addresses, self.http.addresses):
            hosts = {mine.host, other.host}
            if mine.port == other.port != 0 and (
                len(hosts) == 1 or hosts & _EVERYWHERE
            ):
                yield "traffic.listen", "must not be that of http.listen"
                return

    def secrets(self) -> Iterator[tuple[str, Secret]]:
        """Yield every secret with its place, such as ``sinks.ops.webhook_url``."""
        for place, _, secret in secrets_in(self):
            yield place, secret

    def warnings(self) -> list[str]:
        """Return a text for each probable mistake in this valid configuration."""
        found = [
            *literal_secrets(self),
            *misspelt_words(self.sinks, self.approvals, self.traffic),
        ]
        if self.approvals is not None:
            found += odd_rules(self.approvals)
            found += odd_waits(self.approvals, self.sinks)
        if self.approval_entity is not None:
            targets = [sink.target for sink in self.sinks]
            found += odd_replies(self.approval_entity, targets)
            found += hidden_outcomes(self.sinks)
        if not self.sinks:
            found.append("sinks: there are none: events are observed, but not sent")
        found += short_stops(self.sinks, self.shutdown_grace)
        found += doubts_of(self.sinks)
        return found

    def notes(self) -> list[str]:
        """Return the assumptions about Azure resources that no bridge can check."""
        entity = self.approval_entity
        if entity is None:
            return []
        return [*assumptions(entity), *own_outcomes(self.sinks)]


S = TypeVar("S", SinkConfig, ApprovalsConfig)


def _named(part: S, place: str, expand: Callable[[str], str]) -> S:
    """Return a section with the placeholders in its entity's name filled in."""
    names = {}
    for key, name in part.entities.items():
        try:
            names[key] = expand(name)
        except ValueError as error:
            raise ConfigError([f"{place}.{key}: {error}"]) from error
    return replace(part, **names)
