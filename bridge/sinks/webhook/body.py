"""Decide what a webhook posts, and which answers count as success.

The keys of the configuration come first, then the preset, then the defaults: the event
in structured mode, and any 2xx.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import Scope
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
        from bridge.events.samples import one_of_each  # noqa: PLC0415 - only for these

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
