"""The page that draws a card, and the event that the pictures show."""

from typing import Final

CARD = """<!doctype html><meta charset="utf-8"><script src="{library}"></script>
<style>body {{ background: #f5f5f5; padding: 24px; font: 14px "Segoe UI", Lato }}
#card {{ background: #fff; border-radius: 6px; box-shadow: 0 1px 4px #0003 }}
</style><div id="card"></div><script>
const card = new AdaptiveCards.AdaptiveCard();
card.hostConfig = new AdaptiveCards.HostConfig({{ fontFamily: "Segoe UI, Lato" }});
card.parse({card});
document.getElementById("card").append(card.render());
</script>"""
REBOOT_OF_IMDS: Final = {
    "EventId": "85144A68-46D5-4BA5-9DA6-38EE8DDB9061",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-1"],
    "NotBefore": "Mon, 07 Dec 2026 14:03:00 GMT",
    "Description": "Virtual machine is going to be restarted as requested by"
    " authorized user.",
    "EventSource": "User",
    "DurationInSeconds": -1,
}
