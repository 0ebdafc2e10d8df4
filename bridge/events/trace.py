"""Makes ``traceparent``: all events about one EventId belong to one trace. Pure.

Source: https://github.com/cloudevents/spec/blob/main/cloudevents/extensions/distributed-tracing.md;
        https://www.w3.org/TR/trace-context/ (section 3.2)
"""

from uuid import UUID

from bridge.foundation.hashing import hash32


def trace(key: str, event_id: str) -> dict[str, str | int]:
    """Return ``traceparent``: one trace for each EventId, one span for each event.

    The trace id is the EventId if it is a UUID, as in Azure; otherwise its hash. So all
    machines and all steps use the same trace. W3C forbids a trace id of zeros only.

    Args:
        key: the EventId in upper case.
        event_id: the ``id`` of the CloudEvent; its first 16 digits are the span id.
    """
    try:
        trace_id = UUID(key).hex
    except ValueError:
        trace_id = ""
    if not trace_id.strip("0"):
        trace_id = hash32(key)
    return {"traceparent": f"00-{trace_id}-{event_id[:16]}-01"}
