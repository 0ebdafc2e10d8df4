"""The state of the simulated IMDS, without HTTP.

The metadata API (for a VM), the control API (for a test) and tests in the same process
all work on it.
"""

import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from bridge.simulator.clock import Clock, SystemClock
from bridge.simulator.errors import NotLiveError
from bridge.simulator.faults import FaultQueue
from bridge.simulator.imds.document import NEWEST, ScheduledEvent, compute_of
from bridge.simulator.imds.lifecycle import (
    Approval,
    DocumentReel,
    DocumentSource,
    EventLife,
    FixedDocument,
    LiveEvents,
    StartOn,
    View,
)
from bridge.simulator.imds.scenario import DOCUMENT_SECONDS, Scenario

log = logging.getLogger(__name__)

_KEPT = 10_000
_DEFAULT_VM = "WestNO_0"


class ImdsOptions(Struct, frozen=True, kw_only=True):
    """The options that can be changed while the IMDS runs.

    Attributes:
        etag: send an ETag and honour If-None-Match.
        first_call_delay: seconds that the very first read takes; at most 120 in
            reality.
        start_on: which approvals start an event before its NotBefore.
        rate_limit: answer 429 above five requests a second.
    """

    etag: bool = False
    first_call_delay: float = 0.0
    start_on: StartOn = StartOn.AT_ONCE
    rate_limit: bool = False


class ImdsSettings(Struct, frozen=True, kw_only=True):
    """The initial state of a simulated IMDS.

    Attributes:
        scenario: played from the first read of the document on; None: no events.
        speed: divides all durations of the scenario.
        least_phase: the shortest duration of a phase in seconds, so that a client that
            polls each second misses nothing; 0: no lower bound.
        vm_name: compute.name; None: the first resource of the scenario.
        seed: makes the same EventIds each time; None: random ones.
        options: the initial options; they can be changed later.
    """

    scenario: Scenario | None = None
    speed: float = 1.0
    least_phase: float = 0.0
    vm_name: str | None = None
    seed: int | None = None
    options: ImdsOptions = field(default_factory=ImdsOptions)


class LoggedRequest(Struct, frozen=True, kw_only=True):
    """A request to /metadata, as received."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: str
    at: float


class ImdsState:
    """The metadata of one VM and its scheduled events.

    Tests in the same process use these methods, too.

    Attributes:
        options: the options that can be changed.
        faults: the faults on demand.
        requests: the last requests to /metadata, oldest first.
        approvals: the last accepted approvals, oldest first.
        on_approved: called with each approved EventId.
        compute: the VM's metadata; None: IMDS has none, and answers 404.
    """

    def __init__(self, settings: ImdsSettings, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.options = settings.options
        self.faults = FaultQueue()
        self.requests: deque[LoggedRequest] = deque(maxlen=_KEPT)
        self.approvals: deque[Approval] = deque(maxlen=_KEPT)
        self.on_approved: list[Callable[[str], None]] = []
        self.vm_name = _vm_name(settings)
        self.compute: Mapping[str, object] | None = compute_of(self.vm_name)
        self._live = _live_events(settings)
        self._source: DocumentSource = _reel(settings) or self._live
        self._enabled_at: float | None = None

    async def enabled(self) -> None:
        """Wait until Scheduled Events is enabled; the first call enables it."""
        now = self.clock.now()
        if self._enabled_at is None:
            self._enabled_at = now + self.options.first_call_delay
        if now < self._enabled_at:
            await self.clock.sleep(self._enabled_at - now)

    def read(self, version: str) -> View:
        """Return the document for a client; the first call starts the scenario."""
        return self._source.read(self.clock.now(), version)

    def peek(self) -> View:
        """Return the newest version's document; this does not count as a read."""
        return self._source.peek(self.clock.now(), NEWEST)

    def submit(self, event_ids: tuple[str, ...], version: str = NEWEST) -> bool:
        """Accept StartRequests of this VM; False: an EventId is missing."""
        return self._submit(event_ids, self.vm_name, version)

    def approve(self, event_id: str, by: str) -> bool:
        """Accept an approval of another VM; False: the EventId is missing."""
        return self._submit((event_id,), by, NEWEST)

    def _submit(self, event_ids: tuple[str, ...], by: str, version: str) -> bool:
        at = self.clock.now()
        approval = Approval(event_ids=event_ids, by=by, at=at, version=version)
        is_taken = self._source.approve(approval)
        if is_taken:
            self._record(approval)
        return is_taken

    def _record(self, approval: Approval) -> None:
        self.approvals.append(approval)
        log.info("approval taken", extra={"by": approval.by})
        for event_id in approval.event_ids:
            for callback in self.on_approved:
                callback(event_id)

    def events(self) -> tuple[ScheduledEvent, ...]:
        """Return the current live events."""
        return self._live.events(self.clock.now())

    def find(self, event_id: str) -> ScheduledEvent:
        """Return a live event.

        Raises:
            NoSuchEventError: it does not exist.
            NotLiveError: a fixed document is shown.
        """
        return self._require_live().find(event_id, self.clock.now())

    def schedule(self, life: EventLife) -> ScheduledEvent:
        """Add an event.

        Raises:
            NotLiveError: a fixed document is shown.
        """
        return self._require_live().schedule(life, self.clock.now())

    def change(self, event: ScheduledEvent) -> None:
        """Replace the live event with the same EventId by ``event``.

        Raises:
            NotLiveError: a fixed document is shown.
        """
        self._require_live().replace(event)

    def start(self, event_id: str) -> ScheduledEvent:
        """Start an event now.

        Raises:
            NoSuchEventError: it does not exist.
            NotLiveError: a fixed document is shown.
        """
        return self._require_live().start(event_id, self.clock.now())

    def remove(self, event_id: str) -> None:
        """Remove an event: it is over, or cancelled if it was Scheduled.

        Raises:
            NoSuchEventError: it does not exist.
            NotLiveError: a fixed document is shown.
        """
        self._require_live().remove(event_id, self.clock.now())

    def set_incarnation(self, number: int) -> None:
        """Continue to count from ``number``, as after a move of the VM.

        Raises:
            NotLiveError: a fixed document is shown.
        """
        live = self._require_live()
        live.events(self.clock.now())
        live.incarnation = number

    def show(self, document: bytes) -> None:
        """Show ``document`` unchanged, even if invalid, instead of the live events."""
        self._source = FixedDocument(document)

    def show_events(self) -> None:
        """Show the live events again."""
        self._source = self._live

    def configure(self, options: ImdsOptions) -> None:
        """Change the options."""
        self.options = options
        self._live.start_on = options.start_on

    @property
    def is_over(self) -> bool:
        """Whether the document will not change by itself any more."""
        return self._source.is_over(self.clock.now())

    @property
    def is_live(self) -> bool:
        """Whether the live events are shown, not given documents."""
        return self._source is self._live

    def _require_live(self) -> LiveEvents:
        if not self.is_live:
            raise NotLiveError(
                "given documents are shown; DELETE /simulator/document shows the "
                "events again"
            )
        return self._live


def _vm_name(settings: ImdsSettings) -> str:
    first = settings.scenario.first_resource if settings.scenario else None
    return settings.vm_name or first or _DEFAULT_VM


def _live_events(settings: ImdsSettings) -> LiveEvents:
    lives = settings.scenario.lives if settings.scenario else ()
    dice = random.Random(settings.seed)  # noqa: S311 - EventIds are not secret  # nosec B311

    def new_id() -> str:
        return str(uuid.UUID(int=dice.getrandbits(128), version=4)).upper()

    return LiveEvents(
        new_id=new_id,
        pending=tuple(
            life.faster(settings.speed, settings.least_phase) for life in lives
        ),
        start_on=settings.options.start_on,
    )


def _reel(settings: ImdsSettings) -> DocumentReel | None:
    if settings.scenario is None or not settings.scenario.documents:
        return None
    return DocumentReel(
        documents=settings.scenario.documents,
        hold_seconds=max(DOCUMENT_SECONDS / settings.speed, settings.least_phase),
    )
