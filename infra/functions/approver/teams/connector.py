"""Teams' side of the bot, which takes and changes messages: the Bot Connector API.

The bot talks to the address of the settings only, and never to one that a request
names: nobody can make it send its token elsewhere.

Source: learn.microsoft.com/azure/bot-service/rest-api/
        bot-framework-rest-connector-api-reference;
        learn.microsoft.com/microsoftteams/platform/bots/how-to/get-teams-context
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from approver.people import is_object_id
from approver.teams.config import TeamsConfig
from approver.teams.credential import Credential
from approver.teams.errors import TeamsError
from approver.teams.web import Ask, Web

CARD_TYPE: Final = "application/vnd.microsoft.card.adaptive"
_PAGE: Final = 200
_MOST_PAGES: Final = 10


class Connector:
    """The conversation that gets the cards.

    Args:
        config: names it.
        credential: who the bot is.
        web: for the requests.
    """

    def __init__(self, config: TeamsConfig, credential: Credential, web: Web) -> None:
        self._config = config
        self._credential = credential
        self._web = web

    async def post(self, card: Mapping[str, object], summary: str) -> str:
        """Post a card as a new message; return the message's id.

        Raises:
            TeamsError: it was not posted, or that is not known.
        """
        found = await self._call("POST", "activities", _message(card, summary))
        name = found.get("id")
        if not isinstance(name, str) or not name:
            raise TeamsError("Teams answered without the id of the message")
        return name

    async def update(
        self, activity: str, card: Mapping[str, object], summary: str
    ) -> None:
        """Put a card into a message in place of the one that is there.

        Raises:
            TeamsError: it was not changed, or that is not known.
        """
        path = f"activities/{quote(activity, safe='')}"
        message = {**_message(card, summary), "id": activity}
        await self._call("PUT", path, message)

    async def members(self) -> dict[str, str]:
        """Return who is in the conversation: Teams' id of each, by object id.

        Raises:
            TeamsError: it was not said.
        """
        found: dict[str, str] = {}
        query = {"pageSize": str(_PAGE)}
        for _ in range(_MOST_PAGES):
            page = await self._call("GET", f"pagedmembers?{urlencode(query)}")
            found |= _ids(page.get("members"))
            following = page.get("continuationToken")
            if not isinstance(following, str) or not following:
                break
            query["continuationToken"] = following
        return found

    async def _call(
        self, method: str, path: str, body: object = None
    ) -> dict[str, object]:
        config = self._config
        conversation = quote(config.conversation, safe="")
        return await self._web.ask(
            Ask(
                whom="Teams",
                method=method,
                url=f"{config.service}v3/conversations/{conversation}/{path}",
                body=body,
                token=await self._credential.token(f"{config.issuer}/.default"),
            )
        )


def _message(card: Mapping[str, object], summary: str) -> dict[str, object]:
    return {
        "type": "message",
        "summary": summary,
        "attachments": [{"contentType": CARD_TYPE, "content": card}],
    }


def _ids(members: object) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in members if isinstance(members, list) else ():
        if not isinstance(each, dict):
            continue
        own = each.get("aadObjectId") or each.get("objectId")
        name = each.get("id")
        if isinstance(own, str) and isinstance(name, str) and is_object_id(own.lower()):
            found[own.lower()] = name
    return found
