"""What would be posted, for people to look at: nothing sent, nothing secret."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from bridge.sinks.base import Resources
from tests.support.sink_fixtures import SECRET, Inbox, cloud_event, sink_config

SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def test_preview_shows_what_is_sent_and_sends_nothing(
    resources: Resources, inbox: Inbox
) -> None:
    options = {
        "type": "webhook",
        "url": f"{inbox.url}/{SECRET}?sig={SECRET}",
        "headers": {"x-vm": "{vm_name}", "x-file": "env:IT", "x-api-key": SECRET},
        "handshake": "required",
    }
    config = sink_config(options, {"IT": SECRET})

    preview = await config.preview(resources, cloud_event())

    assert preview.head == (
        f"POST {inbox.url}",
        "x-vm: web-0",
        "x-file: <secret>",
        "x-api-key: <secret>",
        "WebHook-Request-Origin: web-0",
        "Content-Type: application/cloudevents+json; charset=utf-8",
    )
    assert preview.body == cloud_event().to_json()
    assert inbox.received == []


async def test_preview_names_the_compression_and_shows_the_body_without(
    resources: Resources,
) -> None:
    options = {"type": "webhook", "url": "https://siem.example/in", "gzip": "1KB"}
    short, long = cloud_event(), cloud_event(description="x" * 1000)

    previews = [await sink_config(options).preview(resources, e) for e in (short, long)]

    assert ["Content-Encoding: gzip" in each.head for each in previews] == [False, True]
    assert previews[1].body == long.to_json()


async def test_origin_of_a_vm_that_is_not_known_here_is_shown_as_it_stands(
    resources: Resources,
) -> None:
    options = {
        "type": "webhook",
        "url": "https://x.example",
        "handshake": "attempt",
        "handshake_origin": "{vm_name}.example",
    }
    anywhere = replace(resources, expand=lambda text: text)

    preview = await sink_config(options).preview(anywhere, cloud_event())

    assert "WebHook-Request-Origin: {vm_name}.example" in preview.head


@pytest.mark.parametrize(
    ("auth", "line"),
    [
        ({"type": "bearer", "token": SECRET}, "Authorization: Bearer <secret>"),
        (
            {"type": "basic", "username": "u", "password": SECRET},
            "Authorization: Basic <secret>",
        ),
        ({"type": "header", "name": "x-a", "value": SECRET}, "x-a: <secret>"),
        ({"type": "entra", "scope": "s/.default"}, "Authorization: Bearer <secret>"),
    ],
)
async def test_preview_says_how_it_is_trusted_and_fetches_no_token(
    resources: Resources, auth: Mapping[str, object], line: str
) -> None:
    options = {"type": "webhook", "url": "https://siem.example/in", "auth": auth}

    preview = await sink_config(options).preview(resources, cloud_event())

    assert line in preview.head
    assert SECRET not in repr(preview)


async def test_preview_has_all_of_a_signature_but_itself(resources: Resources) -> None:
    signature = {"secrets": [SIGNING]}
    options = {"type": "webhook", "url": "https://x.example", "signature": signature}

    preview = await sink_config(options).preview(resources, cloud_event())

    names = [line.partition(":")[0] for line in preview.head]
    assert names[-3:] == ["webhook-id", "webhook-timestamp", "webhook-signature"]
    assert preview.head[-1] == "webhook-signature: <secret>"
