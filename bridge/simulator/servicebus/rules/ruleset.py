"""The rules of one subscription, which may change while messages arrive."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from msgspec import Struct

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.rules.row import Arrival, Row
from bridge.simulator.servicebus.rules.rule import Rule
from bridge.simulator.sql.errors import EvaluationError


class Admitted(Struct, frozen=True, kw_only=True):
    """The result of applying the rules of a subscription to one message.

    Attributes:
        copies: the messages for the subscription: one for all matching rules without an
            action, and one for each matching rule with an action.
        failures: why some rules could not be applied.
    """

    copies: tuple[Message, ...] = ()
    failures: tuple[str, ...] = ()


class RuleSet:
    """The rules by their names.

    Args:
        rules: the rules at the start.
        clock: returns seconds since the epoch.
    """

    def __init__(self, rules: Iterable[Rule], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rules = dict[str, Rule]()
        for rule in rules:
            self.add(rule)

    def __iter__(self) -> Iterator[Rule]:
        return iter(tuple(self._rules.values()))

    def find(self, name: str) -> Rule:
        """Return a rule.

        Raises:
            RefusedError: no rule has this name.
        """
        found = self._rules.get(name.lower())
        if found is None:
            raise RefusedError(
                Condition.NOT_FOUND, f"the rule {name!r} could not be found"
            )
        return found

    def add(self, rule: Rule) -> None:
        """Add a rule.

        Raises:
            RefusedError: another rule has this name.
        """
        if rule.name.lower() in self._rules:
            raise RefusedError(
                Condition.ENTITY_ALREADY_EXISTS, f"the rule {rule.name!r} exists"
            )
        self._rules[rule.name.lower()] = replace(rule, created_at=self._clock())

    def change(self, rule: Rule) -> None:
        """Replace the rule of the same name.

        Raises:
            RefusedError: no rule has this name.
        """
        before = self.find(rule.name)
        self._rules[rule.name.lower()] = replace(rule, created_at=before.created_at)

    def remove(self, name: str) -> None:
        """Remove a rule.

        Raises:
            RefusedError: no rule has this name.
        """
        self.find(name)
        del self._rules[name.lower()]

    def admit(self, message: Message, arrival: Arrival) -> Admitted:
        """Apply the rules to a message; return the copies for the subscription."""
        row = Row(message, arrival)
        plain: Message | None = None
        changed, failures = list[Message](), list[str]()
        for rule in self._rules.values():
            try:
                copy = rule.copy(row)
            except EvaluationError as error:
                failures.append(f"rule {rule.name}: {error}")
                continue
            if copy is None:
                continue
            if rule.action is None:
                plain = copy
            else:
                changed.append(copy)
        copies = changed if plain is None else [plain, *changed]
        return Admitted(copies=tuple(copies), failures=tuple(failures))
