"""Decide what a webhook posts, and which answers count as success.

The keys of the configuration come first, then the preset, then the defaults: the event
in structured mode, and any 2xx.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from msgspec import Struct

from bridge.events.build import (
    EventContext,
    Outcome,
    from_bridge,
    from_document,
    from_outcome,
    from_transition,
)
from bridge.events.cloudevent import CloudEvent, rfc3339
from bridge.events.command_result import CommandResult, from_command
from bridge.events.data import BridgeData
from bridge.events.document import parse
from bridge.events.identity import Identity
from bridge.events.routing import Scope
from bridge.events.transitions import Transition
from bridge.events.vocabulary import TransitionKind
from bridge.foundation.errors import MissingExtraError
from bridge.sinks.webhook import template
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.preset import (
    MANY,
    NO_AUTH,
    RENDER,
    ContentMode,
    Many,
    Preset,
    Rendered,
    Standing,
    SuccessConfig,
    Talker,
    Verdict,
    by_rule,
    by_status,
    once,
)
from bridge.sinks.webhook.presets.registry import PRESETS, PresetName
from bridge.sinks.webhook.template import TemplateFaultError
from bridge.telemetry.metrics import COMMAND_OUTCOMES, OUTCOMES

_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:; ?[\w-]+=[\w-]+)*", re.ASCII)
_JSON = "application/json"


class Shape(Struct, frozen=True, kw_only=True):
    """The keys that decide about body and success, as configured.

    Attributes:
        is_many: whether a request may hold several events.
    """

    preset: PresetName | None = None
    mode: ContentMode | None = None
    template: str | None = None
    content_type: str | None = None
    gzip: int | None = None
    success: SuccessConfig | None = None
    is_many: bool = False

    @property
    def known(self) -> Preset | None:
        """The preset; None without one."""
        return None if self.preset is None else PRESETS[self.preset]

    @property
    def auth(self) -> AuthDefaults:
        """The preset's defaults for authentication."""
        return self.known.auth if self.known else NO_AUTH

    @property
    def has_object(self) -> bool:
        """Whether the body may be a JSON object, to which a member can be added."""
        by_preset = self.mode is None and self.auth.type == "body"
        return by_preset or self.mode == "template"

    @property
    def judge(self) -> Verdict:
        """The function that decides what an answer means."""
        if self.success is not None:
            return partial(by_rule, self.success)
        return self.known.judge if self.known else by_status

    @property
    def many(self) -> Many | None:
        """How several events go in one request; None: they cannot."""
        if self.mode is None and self.known is not None:
            return self.known.many
        return MANY.get(self.mode or "structured")

    @property
    def standing(self) -> Standing | None:
        """How the service is reminded of its open alerts; None: it is not."""
        return self.known.standing if self.mode is None and self.known else None

    def talker(self) -> Talker:
        """Return the function that makes the requests of an event.

        Raises:
            MissingExtraError: Jinja2 is needed and not installed.
            TemplateFaultError: the template can no longer be read.
        """
        known = self.known
        if self.is_many and self.many is not None:
            return partial(once, self.many.render, None)
        if self.mode is None and known is not None and known.talk is not None:
            return known.talk
        return partial(once, self.renderer(), known)

    def renderer(self) -> Callable[[CloudEvent], Rendered]:
        """Return the function that makes headers and body of an event.

        Raises:
            MissingExtraError: Jinja2 is needed and not installed.
            TemplateFaultError: the template can no longer be read.
        """
        if self.mode == "template":
            kind = self.content_type or _JSON
            return template.load(self.template or "", kind).render
        known = self.known
        if self.mode is None and known is not None and known.render is not None:
            return known.render
        return RENDER[self.mode or "structured"]

    def faults(
        self, *, lifecycle: bool, is_signed: bool, has_auth: bool, scope: Scope
    ) -> Iterator[tuple[str, ...]]:
        """Yield keys that conflict, and faults of a template.

        Args:
            lifecycle: whether the sink gets ``bridge.*`` and ``document.*``.
            is_signed: whether there is ``[sinks.signature]``.
            has_auth: whether there is any authentication.
            scope: the scope of the events that are routed to the sink.
        """
        if self.gzip is not None and is_signed:
            yield "gzip", "leave it out: only plain bodies are signed", "signature"
        if self.is_many and self.many is None:
            yield "batch", _one_a_request(self.preset, self.mode), "preset"
        if (known := self.known) is not None:
            yield from self._preset_faults(
                known, is_signed=is_signed, has_auth=has_auth
            )
            if known.scope not in {None, scope}:
                by = f'with preset = "{self.preset}", only one VM may send each event'
                yield "when.scope", f'must be "{known.scope}": {by}', "preset"
        yield from self._template_faults(lifecycle=lifecycle)

    def _preset_faults(
        self, known: Preset, *, is_signed: bool, has_auth: bool
    ) -> Iterator[tuple[str, ...]]:
        by = f'preset = "{self.preset}"'
        if self.mode is not None and self.mode not in known.modes:
            allowed = ", ".join(f'"{mode}"' for mode in sorted(known.modes))
            what = f"{by} makes its own body; allowed are {allowed}"
            yield "content_mode", what, "preset"
        if self.gzip is not None and not known.takes_gzip:
            yield "gzip", f"{by} is not known to accept compressed bodies", "preset"
        if known.is_signed and not is_signed:
            yield "signature", f"is missing: {by} needs its secrets", "preset"
        if not known.is_open and not has_auth:
            yield "auth", f"is missing: {by} needs it", "preset"

    def _template_faults(self, *, lifecycle: bool) -> Iterator[tuple[str, ...]]:
        if self.mode != "template":
            for key in ("template", "content_type"):
                if getattr(self, key) is not None:
                    yield key, 'is for content_mode = "template"', "content_mode"
        elif self.template is None:
            yield "template", 'is missing: content_mode = "template" needs it'
        elif self.content_type and not _MEDIA_TYPE.fullmatch(self.content_type):
            yield "content_type", f'must be a media type such as "{_JSON}"'
        else:
            yield from self._trial(lifecycle=lifecycle)

    def _trial(self, *, lifecycle: bool) -> Iterator[tuple[str, ...]]:
        """Render the template for an event of each type; yield the first fault."""
        try:
            ready = template.load(self.template or "", self.content_type or _JSON)
        except MissingExtraError as error:
            yield "content_mode", str(error)
            return
        except TemplateFaultError as error:
            yield "template", str(error)
            return
        # Imported here: only templates need the example events.

        for event in one_of_each(lifecycle=lifecycle):
            try:
                ready.body(event)
            except TemplateFaultError as error:
                yield "template", f"{error} (tried on {event.type})"
                return


def _one_a_request(preset: PresetName | None, mode: ContentMode | None) -> str:
    """Return why ``batch`` must be 1, and which presets and modes allow more."""
    takers = ", ".join(f'"{name}"' for name in PRESETS if PRESETS[name].many)
    modes = " and ".join(f'"{name}"' for name in MANY)
    by = f'content_mode = "{mode or "structured"}"'
    if preset is not None and mode is None:
        by = f'preset = "{preset}"'
    return (
        f"must be 1: {by} takes one event a request; the presets {takers} and the "
        f"values {modes} of content_mode take several"
    )


# -- One event of each type, to test a template with. Pure -----------------------------


_AT = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
_ME = Identity(
    vm_name="web-0",
    vm_id="13f56399-bd52-4150-9748-7190aae1ff21",
    resource_id=(
        "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/web"
        "/providers/Microsoft.Compute/virtualMachines/web-0"
    ),
    location="westeurope",
    vm_scale_set_name="",
)
_CONTEXT = EventContext(
    prefix="sebridge",
    source="/subscriptions/00000000-0000-0000-0000-000000000000/resourcegroups/web"
    "/providers/microsoft.compute",
    identity=_ME,
    version="0",
)
_EVENT = {
    "EventId": "00000000-0000-0000-0000-000000000000",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0", "web-1"],
    "NotBefore": "Mon, 02 Mar 2026 12:15:00 GMT",
    "Description": 'Host "A" & its \\ <guests>',  # breaks a careless template
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
_DOCUMENT = parse(orjson.dumps({"DocumentIncarnation": 2, "Events": [_EVENT]}))
_STARTED = parse(
    orjson.dumps(
        {
            "DocumentIncarnation": 3,
            "Events": [{**_EVENT, "EventStatus": "Started", "NotBefore": ""}],
        }
    )
)
_REQUEST = {
    "messageId": "m-1",
    "enqueuedAt": "2026-03-02T12:00:00Z",
    "approvedBy": None,
    "reason": None,
    "expiresAt": None,
}


def one_of_each(*, lifecycle: bool) -> Iterator[CloudEvent]:
    """Yield an event of each type, and one with as few values as possible.

    Args:
        lifecycle: whether to include ``bridge.*`` and ``document.*``.
    """
    yield from map(_transition, TransitionKind)
    for outcome in OUTCOMES:
        yield _outcome(outcome)
    yield from map(_command, COMMAND_OUTCOMES)
    if lifecycle:
        for what in ("started", "stopped", "imds-recovered"):
            yield _life(what)
        yield _life("imds-unreachable", reason="no answer")
        yield _life("heartbeat", pending=0, dead=0, free_disk_bytes=10**9)
        for what, event_id in (("traffic-out", "x"), ("traffic-in", None)):
            yield _life(what, event_id=event_id, since=rfc3339(_AT))
        yield from_document(
            _CONTEXT, _DOCUMENT, previous_incarnation=None, observed_at=_AT, repeats=0
        ).event


def _life(what: str, reason: str | None = None, **members: Any) -> CloudEvent:
    data = BridgeData(
        observed_at=rfc3339(_AT), reporter=_CONTEXT.reporter, reason=reason, **members
    )
    return from_bridge(_CONTEXT, what, data).event


def _transition(kind: TransitionKind) -> CloudEvent:
    (scheduled,), (started,) = _DOCUMENT.events.values(), _STARTED.events.values()
    step = Transition(
        kind=kind,
        event=started if kind is TransitionKind.STARTED else scheduled,
        previous=scheduled if kind is TransitionKind.UPDATED else None,
        changes=("NotBefore",) if kind is TransitionKind.UPDATED else (),
        announced=None,
        unobserved=None,
    )
    return from_transition(
        _CONTEXT, step, incarnation=2, observed_at=_AT, repeats=0
    ).event


def _outcome(outcome: str) -> CloudEvent:
    """Return the event of an outcome; ``invalid`` has no EventId."""
    is_known = outcome not in {"invalid", "unknown-event", "event-ended"}
    (event,) = _DOCUMENT.events.values()
    return from_outcome(
        _CONTEXT,
        Outcome(
            outcome=outcome,
            event_id=None if outcome == "invalid" else event.event_id,
            event=event if is_known else None,
            imds_status=200 if outcome == "relayed" else None,
            confirmed=True if outcome == "relayed" else None,
            reason=None if outcome == "relayed" else outcome,
            request=_REQUEST,
            origin=("vm-approvals", "m-1", 1),
        ),
        _AT,
    ).event


def _command(outcome: str) -> CloudEvent:
    """Return the result of a command; a skipped command has never run."""
    ran, failed = outcome != "skipped", outcome == "failed"
    reasons = {"failed": "exit code 1", "skipped": "the event has started"}
    result = CommandResult(
        sink="drain",
        outcome=outcome,
        action="prepare",
        cause=_transition(TransitionKind.SCHEDULED),
        exit_code=int(failed) if ran else None,
        signal=None,
        timed_out=False,
        seconds=4.2 if ran else 0.0,
        attempts=int(ran),
        output='cannot evict "db-0" & <others>' if failed else None,
        reason=reasons.get(outcome),
    )
    return from_command(_CONTEXT, result, _AT).event
