"""The edges of the forwarder, simulated: IMDS, sinks and the approval queue."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bridge.events.start_result import StartAnswer, StartResult
from bridge.foundation.errors import (
    DeliveryError,
    MetadataRefusedError,
    MetadataUnavailableError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.values import Duration
from bridge.imds.client import Answer
from bridge.imds.config import ImdsConfig
from bridge.outbox.records import Delivery
from tests.simulation.on_the_spot import judge_post
from tests.simulation.on_the_spot_after import judge_release
from tests.simulation.plan import (
    POLL,
    Event,
    Plan,
    Scene,
)
from tests.simulation.timeline import true_time

if TYPE_CHECKING:
    from tests.simulation.life import Life


@dataclass(frozen=True, slots=True)
class Shown:
    """A document that a good answer showed."""

    at: float
    incarnation: int
    events: Mapping[str, Event]
    is_whole: bool
    life: int
    is_durable: bool = True


@dataclass(frozen=True, slots=True)
class Post:
    """A StartRequest that reached IMDS, or was lost on the way there or back."""

    at: float
    event_id: str
    life: int
    is_taken: bool
    is_answered: bool
    shown: Event | None = None  # as the bridge had last read it


@dataclass(slots=True)
class Azure:
    """The truth about the events, whoever looks."""

    plan: Plan
    incarnation: int = 5
    events: dict[str, Event] = field(default_factory=dict)
    posts: list[Post] = field(default_factory=list)
    fetches: int = 0
    _is_hidden: bool = False
    _played: int = 0
    _begun: list[tuple[float, str]] = field(default_factory=list)

    def show(self, at: float) -> dict[str, Event]:
        """Return the events as a document shows them now."""
        while self._played < len(self.plan.scenes):
            scene = self.plan.scenes[self._played]
            if scene.at > at:
                break
            self._play(scene)
            self._played += 1
        for begins, event_id in [b for b in self._begun if b[0] <= at]:
            self._begun.remove((begins, event_id))
            self._start(event_id)
        return {} if self._is_hidden else {k: dict(v) for k, v in self.events.items()}

    def _play(self, scene: Scene) -> None:
        fields = dict(scene.fields)
        if scene.change == "reset":
            self._is_hidden, self.incarnation = True, 1
        elif scene.change == "return":
            self._is_hidden, self.incarnation = False, 2
        elif scene.change == "vanish":
            if self.events.pop(scene.event_id, None) is not None:
                self._count()
        elif scene.change == "update":
            if scene.event_id in self.events:
                self.events[scene.event_id].update(fields)
                self._count()
        else:
            self._appear(scene, fields)

    def _appear(self, scene: Scene, fields: dict[str, object]) -> None:
        if fields:
            self.events[scene.event_id] = {
                "EventId": scene.event_id,
                "EventStatus": "Scheduled",
                **fields,
            }
            self._count()
        if scene.change == "start":
            self._start(scene.event_id)

    def _start(self, event_id: str) -> None:
        event = self.events.get(event_id)
        if event is not None and event["EventStatus"] != "Started":
            event.update(EventStatus="Started", NotBefore="")
            self._count()

    def _count(self) -> None:
        if not self._is_hidden:
            self.incarnation += 1

    def begin(self, event_id: str, at: float) -> bool:
        """Take a StartRequest; False if there is no such event to be started."""
        event = self.show(at).get(event_id)
        if event is None:
            return False
        number = len(self.posts)
        self._begun.append((at + 3 * self.plan.chance("begin", number), event_id))
        return True


@dataclass(slots=True)
class Imds:
    """IMDS as one life of the forwarder sees it."""

    life: "Life"
    config: ImdsConfig = field(
        default_factory=lambda: ImdsConfig(poll_interval=Duration(POLL))
    )
    shown: Shown | None = None

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - the client's own word
        """Answer with the document, or with what the seed has in its place."""
        world, plan = self.life.world, self.life.world.plan
        self.life.moment("fetch")
        world.requests.append((self.life.now(), self.life.number))
        world.azure.fetches += 1
        number = world.azure.fetches
        await asyncio.sleep(plan.latency * plan.chance("latency", number))
        at = self.life.now()
        if at < plan.end:
            await self._fail(number, timeout)
        events = world.azure.show(at)
        odd = plan.chance("odd", number) if plan.has("imds-odd-bodies") else 1.0
        if odd < 0.05 and at < plan.end:
            return Answer(body=b"<html>", etag=None, date=true_time(at))
        is_whole = odd >= 0.1 or at >= plan.end
        elements: list[object] = [*events.values()]
        body = {
            "DocumentIncarnation": world.azure.incarnation,
            "Events": elements if is_whole else [7, *elements],
        }
        self.shown = Shown(
            at, world.azure.incarnation, events, is_whole, self.life.number
        )
        world.looks.append(self.shown)
        self.life.moment("fetched")
        return Answer(body=json.dumps(body).encode(), etag=None, date=true_time(at))

    async def _fail(self, number: int, timeout: float) -> None:  # noqa: ASYNC109 - the client's own word
        plan, at = self.life.world.plan, self.life.now()
        if not plan.has("imds-errors") or plan.chance("imds", at // 40) > 0.25:
            return
        kind = plan.chance("imds", "error", number)
        if kind < 0.2:
            await asyncio.sleep(min(timeout, 5.0))
            raise MetadataUnavailableError("no answer", outcome="timeout")
        if kind < 0.4:
            raise MetadataUnavailableError("busy", outcome="429", retry_after=5)
        if kind < 0.5:
            raise MetadataRefusedError("bad", outcome="400")
        if kind < 0.9:
            raise MetadataUnavailableError("away", outcome="503")

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        """Take a StartRequest, or not, or take it and not say so."""
        world, plan = self.life.world, self.life.world.plan
        self.life.moment("post")
        at, number = self.life.now(), len(world.azure.posts)
        world.requests.append((at, self.life.number))
        judge_post(self.life, event_id)
        judge_release(self.life, event_id)
        shown = self.shown.events.get(event_id) if self.shown else None
        luck = plan.chance("post", number) if plan.has("post-errors") else 1.0
        is_lost = 0.1 <= luck < 0.4
        is_taken = luck >= 0.1 and (luck >= 0.6 or is_lost)
        if luck >= 0.6 or is_lost:
            is_taken = world.azure.begin(event_id, at)
        is_answered = luck >= 0.4
        post = Post(at, event_id, self.life.number, is_taken, is_answered, shown)
        world.azure.posts.append(post)
        await asyncio.sleep(plan.latency / 2)
        self.life.moment("posted")
        if luck < 0.4:
            return StartAnswer(result=StartResult.IN_DOUBT, text="no answer")
        if 0.4 <= luck < 0.5:
            return StartAnswer(result=StartResult.UNAVAILABLE, status=429, text="429")
        if luck < 0.6 or not is_taken:
            return StartAnswer(result=StartResult.REFUSED, status=400, text="400")
        return StartAnswer(result=StartResult.ACCEPTED, status=200)


@dataclass(frozen=True, slots=True)
class Taken:
    """A delivery that a sink has taken."""

    at: float
    sink: str
    delivery: int
    key: str | None
    cloud_event_id: str | None
    life: int


@dataclass(slots=True)
class Tried:
    """An attempt at a delivery: how it ended, by the word of the sink."""

    at: float
    sink: str
    delivery: int
    life: int
    ended: float = float("inf")
    error: str | None = "cut"
    wish: float = 0.0  # Retry-After


@dataclass(slots=True)
class SimulatedSink:
    """A sink as the seed will have it."""

    name: str
    life: "Life"

    async def deliver(self, delivery: Delivery) -> None:
        """Take a delivery, or fail in one of the ways there are."""
        self.life.moment("deliver")
        self._judge_word(delivery)
        tried = Tried(self.life.now(), self.name, delivery.id, self.life.number)
        self.life.world.tried.append(tried)
        try:
            await self._deliver(delivery)
            tried.error = None
        except DeliveryError as error:
            tried.error = error.reason.value
            tried.wish = getattr(error, "retry_after", None) or 0.0
            raise
        except ValueError:
            tried.error = "unforeseen"
            raise
        finally:
            tried.ended = self.life.now()
        self.life.moment("delivered")

    def _judge_word(self, delivery: Delivery) -> None:
        """Blame an event that only memory has and that does not say so."""
        row, database = self.life.world.rows.get(delivery.id), self.life.database
        if row is None or row.kind != "event" or not delivery.body:
            return
        data = json.loads(delivery.body).get("data", {})
        is_unwritten = database.journal.has(("items", (row.item,)))
        if is_unwritten and data.get("durable", True):
            self.life.world.blame(f"{delivery.type} of memory is said to be durable")

    async def _deliver(self, delivery: Delivery) -> None:
        world, plan = self.life.world, self.life.world.plan
        attempt = world.attempts.get((self.name, delivery.id), 0) + 1
        world.attempts[self.name, delivery.id] = attempt
        name = (self.name, delivery.id, attempt)
        await asyncio.sleep(plan.pace * plan.chance("pace", *name))
        at = self.life.now()
        self._suffer_outage(at)
        if self._is_in_trouble(name, at):
            await self._fail(delivery, name)
        self._take(delivery)

    def _suffer_outage(self, at: float) -> None:
        """Fail each time while the outage lasts."""
        begin, end, kind = self.life.world.plan.outage
        if self.name != "shaky" or not begin <= at < end:
            return
        if kind == "unauthorized":
            raise RefusedDeliveryError("401", Reason.UNAUTHORIZED)
        if kind == "throttled":
            raise TransientDeliveryError("429", Reason.THROTTLED, retry_after=30)
        if kind == "server":
            raise TransientDeliveryError("503", Reason.SERVER)

    def _is_in_trouble(self, name: tuple[object, ...], at: float) -> bool:
        plan = self.life.world.plan
        if self.name == "steady" or at >= plan.end:
            return False
        is_bad = plan.chance("bad minute", self.name, at // 60) < 0.4
        return plan.chance("trouble", *name) < (0.8 if is_bad else 0.05)

    async def _fail(self, delivery: Delivery, name: tuple[object, ...]) -> None:
        plan, kind = self.life.world.plan, self.life.world.plan.chance("kind", *name)
        if plan.has("sink-hangs") and kind < 0.2:
            await asyncio.sleep(100)
        if plan.has("sink-refusals") and kind < 0.5:
            raise RefusedDeliveryError("401", Reason.UNAUTHORIZED)
        if not plan.has("sink-errors"):
            return
        if kind < (0.4 if plan.has("jumps") else 0.6):
            self._take(delivery)  # and the answer is lost
            raise TransientDeliveryError("no answer", Reason.TIMEOUT)
        if kind < 0.7:
            raise TransientDeliveryError("429", Reason.THROTTLED, retry_after=30)
        if kind < 0.72:
            self.life.world.refused.add((self.name, delivery.id))
            raise PermanentDeliveryError("400", Reason.REJECTED)
        if kind < 0.8:
            raise ValueError("unforeseen")
        raise TransientDeliveryError("503", Reason.SERVER)

    def _take(self, delivery: Delivery) -> None:
        self.life.world.taken.append(
            Taken(
                self.life.now(),
                self.name,
                delivery.id,
                delivery.key,
                delivery.cloud_event_id,
                self.life.number,
            )
        )
