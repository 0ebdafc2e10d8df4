"""Templates: what they see, what they cannot do, and what is said of a fault."""

import sys
from pathlib import Path

import orjson
import pytest

from bridge.events.cloudevent import CloudEvent
from bridge.events.samples import one_of_each
from bridge.foundation.errors import MissingExtraError, PermanentDeliveryError
from bridge.sinks.webhook import template
from bridge.sinks.webhook.template import TemplateFaultError
from tests.support.sink_fixtures import cloud_event

JSON = "application/json"
LOOP = "{% for i in range(99999) %}"
LONG = f"{LOOP}{LOOP}{{{{ event.source }}}}{{% endfor %}}{{% endfor %}}"


def rendered(text: str, event: CloudEvent | None = None, kind: str = JSON) -> bytes:
    return template.load(text, kind).body(event or cloud_event())


def test_tojson_puts_any_value_in_as_json() -> None:
    text = '{"what": {{ event.data.event.Description | tojson }}, "vm": [1]}'

    body = rendered(text)

    assert orjson.loads(body) == {"what": "Host & guest <must> restart", "vm": [1]}
    assert b"<must>" in body, "it is JSON, and not made for a page"


def test_text_is_not_escaped() -> None:
    body = rendered("{{ event.data.event.Description }}", kind="text/plain")

    assert body == b"Host & guest <must> restart"


def test_headers_name_the_content_type() -> None:
    headers, body = template.load("x", "text/plain; charset=utf-8").render(
        cloud_event()
    )

    assert (headers, body) == ({"Content-Type": "text/plain; charset=utf-8"}, b"x")


def test_template_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "body.j2"
    path.write_text("\ufeff{{ event.id | tojson }}", encoding="utf-8")

    assert rendered(f"file:{path}") == b'"' + b"0f" * 16 + b'"'


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{{ nope }}", "line 1: 'nope' is undefined"),
        ("\n\n{{ event.nope | tojson }}", "line 3: 'dict object' has no attribute"),
        ("\n{{ event.data.x.y }}", "line 2: 'dict object' has no attribute 'x'"),
        ("\n{% for %}", "line 2: Expected an expression"),
        ("{{ event.id | upcase }}", "line 1: No filter named 'upcase'"),
        ("{{ 1 / 0 }}", "line 1: division by zero"),
        ("{{ 1 + event.id }}", "line 1: unsupported operand"),
        ("{% include 'x' %}", "line 1: no loader"),
        ("{{ event.__class__.__mro__ }}", "line 1: access to attribute '__class__'"),
        ("{{ 'x' * 3 }}", r"line 1: \* is for numbers"),
        ("{{ 9 ** 9 }}", r"line 1: \* is for numbers"),
        ("{{ range(10000000) | length }}", "line 1: Range too big"),
        (" {% if false %}x{% endif %}\n", "it renders to nothing"),
        ('{"a": {{ event.id }} }', "it does not render to JSON"),
        (
            LONG,
            "it renders to more than 1 MiB",
        ),
    ],
)
def test_fault_names_the_line_and_what_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(TemplateFaultError, match=f"^{fault}"):
        rendered(text)


def test_numbers_may_be_multiplied() -> None:
    assert rendered("{{ event.data.noticeSeconds * 1000 }}") == b"840000"


def test_event_that_cannot_be_rendered_is_a_permanent_failure() -> None:
    compiled = template.load("{{ event.data.event.Nope }}", JSON)

    with pytest.raises(PermanentDeliveryError, match=r"template: line 1: .*Nope"):
        compiled.render(cloud_event())


def test_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TemplateFaultError, match=r"body\.j2 cannot be read: No such"):
        template.load(f"file:{tmp_path}/body.j2", JSON)


def test_without_jinja_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)

    with pytest.raises(MissingExtraError, match=r"\[template\]"):
        template.load("{# not compiled before #}x", JSON)


def test_samples_are_of_every_type() -> None:
    kinds = {
        event.type.removeprefix("sebridge.") for event in one_of_each(lifecycle=True)
    }

    assert {kind.split(".")[0] for kind in kinds} == {
        "scheduledevent",
        "startrequest",
        "command",
        "bridge",
        "document",
    }
    assert len(kinds) == 6 + 10 + 3 + 7 + 1


def test_samples_without_lifecycle_are_of_what_such_a_sink_is_told() -> None:
    families = {event.type.split(".")[1] for event in one_of_each(lifecycle=False)}

    assert families == {"scheduledevent", "startrequest", "command"}
