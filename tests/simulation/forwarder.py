"""The forwarder of one life: its workers, as ``bridge.app`` composes them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.context import ApprovalContext
from bridge.approvals.listener import Listener
from bridge.approvals.policy import Terms
from bridge.approvals.rules import ReplyRules, Rule
from bridge.events.routing import Route, Router, When
from bridge.foundation.clock import Clock
from bridge.foundation.pace import RetryPolicy
from bridge.foundation.values import Duration
from bridge.foundation.workers import Worker
from bridge.imds.config import LEAST_INTERVAL
from bridge.imds.poller import Poller
from bridge.outbox.image import Limits
from bridge.outbox.lookups import Approvals
from bridge.outbox.records import REPLIES, Decision, Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.acting import ActingRelay
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.housekeeping import Housekeeping
from bridge.pipeline.observer import Observer
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics
from tests.simulation.approval_queue import SimulatedQueue
from tests.simulation.batching import BATCHED, BatchedSink
from tests.simulation.edges import SimulatedSink
from tests.simulation.hooks import CONFIG, DRAIN, actor_of
from tests.simulation.plan import (
    AFTER_TYPES,
    ALLOW_DELAY,
    AUTO_DELAY,
    Plan,
)
from tests.support.builders import ME, event_context_of, observed

if TYPE_CHECKING:
    from tests.simulation.life import Life

ROUTES = {
    "steady": Route(when=When(), scope="all", lifecycle=True),
    "shaky": Route(when=When(), scope="all", lifecycle=True),
    "reboots": Route(when=When(event_types=("Reboot",)), scope="all", lifecycle=True),
}
TAKE_MANY = ("steady", "shaky")
ENTITY = "vm-approvals"
_RULES = (
    Rule(name="never", action="deny", event_types=("Redeploy",)),
    Rule(
        name="soon",
        action="auto-approve",
        event_types=("Freeze",),
        delay=Duration(AUTO_DELAY),
    ),
    Rule(name="later", action="allow", delay=Duration(ALLOW_DELAY)),
)


def rules_of(plan: Plan) -> tuple[Rule, ...]:
    """Return the rules that are configured."""
    if not plan.has("after"):
        return _RULES if plan.has("rules") else ()
    drained = Rule(
        name="drained",
        action="auto-approve",
        event_types=AFTER_TYPES,
        after=(DRAIN,),
        others=plan.others,
        delay=Duration(plan.after_delay),
    )
    return (drained,)


class WatchedApprovals(Approvals):
    """Shows the judge which POSTs were begun, by their marks on disk."""

    marked: set[str]
    slow_marks: float
    chance: Callable[[], float]

    async def save(self, decision: Decision, *, now: float) -> None:
        if decision.posted:
            self.marked.add(decision.key)
            await asyncio.sleep(self.slow_marks * self.chance())
        await super().save(decision, now=now)


class Common(TypedDict):
    """What every relay has."""

    sink: str
    outbox: Outbox
    clock: Clock
    metrics: Metrics
    policy: RelayPolicy
    chance: Callable[[], float]


async def _nowhere(delivery: Delivery) -> None:
    """Send nothing: a command is run, and not delivered."""
    raise AssertionError(delivery)


def chance_of(life: "Life", name: str) -> Callable[[], float]:
    """Return what gives another number at each moment of a life."""
    return lambda: life.world.plan.chance(name, life.number, life.moments)


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Builds the workers of one life."""

    life: "Life"
    outbox: Outbox
    poller: Poller
    observer: Observer
    metrics: Metrics

    @classmethod
    async def of(cls, life: "Life") -> "Forwarder":
        """Take up what the life before has left in the state file."""
        acts = [DRAIN] if life.world.plan.has("commands") else []
        metrics = Metrics([*ROUTES, *acts], "1", acting=acts)
        routes = ROUTES | dict.fromkeys(acts, CONFIG.route)
        router = Router(routes=routes, scope="all", identity=ME)
        outbox = await Outbox.of(life.database, router, lost=life.lose)
        outbox.image.limits = Limits(events=life.world.plan.room)
        outbox.approvals = WatchedApprovals(
            outbox.state,
            marked=life.world.marked,
            slow_marks=life.world.plan.slow_marks,
            chance=chance_of(life, "mark"),
        )
        poller, observer = observed(
            life.imds,
            outbox,
            event_context_of(),
            life.clock,
            metrics,
            spacing=LEAST_INTERVAL,
        )
        await observer.restore()
        return cls(life, outbox, poller, observer, metrics)

    def workers(self) -> list[Worker]:
        """Return everything that runs."""
        plan, context = self.life.world.plan, self._desk()
        relays = [self._relay(name) for name in (*ROUTES, REPLIES)]
        if plan.has("commands"):
            relays.append(self._acting())
        housekeeping = Housekeeping(
            outbox=self.outbox,
            observer=self.observer,
            clock=self.life.clock,
            retention=plan.retention,
            max_size=10**9,
        )
        listener = Listener(SimulatedQueue(self.life), context)
        is_wanted = any(rule.action == "auto-approve" for rule in context.terms.rules)
        self.poller.rules = AutoApprover(context) if is_wanted else None
        return [self.poller, housekeeping, *relays, listener]

    def _relay(self, name: str) -> Relay:
        """Return the relay of a sink that takes one by one, or several in a request."""
        sink, plan = SimulatedSink(name, self.life), self.life.world.plan
        if name not in TAKE_MANY or plan.chance("batches", name) > BATCHED:
            return Relay(deliver=sink.deliver, **self._common(name))
        many = BatchedSink(sink, self.life.clock, plan)
        many.relay = Relay(deliver=sink.deliver, **self._common(name))
        many.relay.gather = many.attempt
        return many.relay

    def _acting(self) -> Relay:
        """Return the relay that has commands run."""
        return ActingRelay(
            deliver=_nowhere,
            actor=actor_of(self.life, self.observer),
            event_context=event_context_of,
            **self._common(DRAIN),
        )

    def _common(self, name: str) -> Common:
        return Common(
            sink=name,
            outbox=self.outbox,
            clock=self.life.clock,
            metrics=self.metrics,
            policy=self._policy(),
            chance=chance_of(self.life, "jitter"),
        )

    def _policy(self) -> RelayPolicy:
        backoff = RetryPolicy(max_backoff=60)
        return RelayPolicy(
            backoff=backoff, max_age=self.life.world.plan.max_age, slots=3
        )

    def _desk(self) -> ApprovalContext:
        life = self.life
        return ApprovalContext(
            entity=ENTITY,
            terms=Terms(
                unknown_grace=15.0,
                max_age=4 * 3600.0,
                rules=rules_of(life.world.plan),
                me=ME,
            ),
            abandons_unknown=False,
            replies=ReplyRules.of(["repl*", "vm-*"], [ENTITY]),
            outbox=self.outbox,
            event_context=event_context_of(),
            poller=self.poller,
            clock=life.clock,
            chance=chance_of(life, "pursuit"),
        )
