"""What a webhook posts and takes for a success: preset, mode, template, gzip, rule.

What the user says comes before what a preset says, and that before the default: the
event in structured mode, and any 2xx.
"""

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import MissingExtraError
from bridge.sinks.webhook import template
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.content_mode import RENDER, ContentMode, Rendered
from bridge.sinks.webhook.presets.preset import NO_AUTH, Preset, PresetName
from bridge.sinks.webhook.response import Judge, SuccessConfig, by_rule, by_status
from bridge.sinks.webhook.template import TemplateFaultError

_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:; ?[\w-]+=[\w-]+)*", re.ASCII)
_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The keys that say so, as they stand in the configuration."""

    preset: PresetName | None = None
    mode: ContentMode | None = None
    template: str | None = None
    content_type: str | None = None
    gzip: int | None = None
    success: SuccessConfig | None = None

    @property
    def known(self) -> Preset | None:
        """What is known of the service; None without a preset."""
        if self.preset is None:
            return None
        from bridge.sinks.webhook.presets.registry import (  # noqa: PLC0415  eight services
            PRESETS,
        )

        return PRESETS[self.preset]

    @property
    def auth(self) -> AuthDefaults:
        """What is known of its auth."""
        return self.known.auth if self.known else NO_AUTH

    @property
    def judge(self) -> Judge:
        """What an answer means."""
        if self.success is not None:
            return partial(by_rule, self.success)
        return self.known.judge if self.known else by_status

    def renderer(self) -> Callable[[CloudEvent], Rendered]:
        """Return what makes headers and body of an event.

        Raises:
            MissingExtraError: Jinja2 is wanted and not installed.
            TemplateFaultError: the template cannot be read any more.
        """
        if self.mode == "template":
            kind = self.content_type or _JSON
            return template.load(self.template or "", kind).render
        if self.mode is None and self.known is not None:
            return self.known.render
        return RENDER[self.mode or "structured"]

    def packed(self, headers: dict[str, str], body: bytes) -> Rendered:
        """Compress what is large enough for it."""
        if self.gzip is None or len(body) < self.gzip:
            return headers, body
        return {**headers, "Content-Encoding": "gzip"}, gzip.compress(body, mtime=0)

    def faults(
        self, *, lifecycle: bool, is_signed: bool, has_auth: bool
    ) -> Iterator[tuple[str, ...]]:
        """Yield what does not go together, and what a template cannot do.

        Args:
            lifecycle: whether the sink is told of ``bridge.*`` and ``document.*``.
            is_signed: whether there is ``[sinks.signature]``.
            has_auth: whether the sink says who it is.
        """
        if self.gzip is not None and is_signed:
            yield "gzip", "leave it out: a signature is of plain bodies", "signature"
        if self.known is not None:
            yield from self._preset_faults(
                self.known, is_signed=is_signed, has_auth=has_auth
            )
        yield from self._template_faults(lifecycle=lifecycle)

    def _preset_faults(
        self, known: Preset, *, is_signed: bool, has_auth: bool
    ) -> Iterator[tuple[str, ...]]:
        by = f'preset = "{self.preset}"'
        if self.mode is not None and self.mode not in known.modes:
            allowed = ", ".join(f'"{mode}"' for mode in sorted(known.modes))
            what = f"{by} makes its own; allowed are {allowed}"
            yield "content_mode", what, "preset"
        if self.gzip is not None and not known.takes_gzip:
            yield "gzip", f"{by} is not known to take compressed bodies", "preset"
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
        """Try the template on an event of each type; the first fault is told."""
        try:
            ready = template.load(self.template or "", self.content_type or _JSON)
        except MissingExtraError as error:
            yield "content_mode", str(error)
            return
        except TemplateFaultError as error:
            yield "template", str(error)
            return
        # Who has no template does without the events to try one on.
        from bridge.sinks.webhook.example_events import one_of_each  # noqa: PLC0415 - for templates only

        for event in one_of_each(lifecycle=lifecycle):
            try:
                ready.body(event)
            except TemplateFaultError as error:
                yield "template", f"{error} (tried on {event.type})"
                return
