"""Whether a person belongs to one of the groups that may decide.

Microsoft Graph is asked at each click, so that who left a group cannot decide any
more. Teams puts no groups into what it sends, so that there is nothing else to ask.

Source: learn.microsoft.com/graph/api/directoryobject-checkmembergroups (transitive; at
        most 20 groups; application permissions User.Read.All and GroupMember.Read.All)
"""

from urllib.parse import quote

from approver.teams.config import TeamsConfig
from approver.teams.credential import Credential
from approver.teams.web import Ask, Web


class Groups:
    """The groups whose members may decide.

    Args:
        config: names them.
        credential: who asks.
        web: for Microsoft Graph.
    """

    def __init__(self, config: TeamsConfig, credential: Credential, web: Web) -> None:
        self._config = config
        self._credential = credential
        self._web = web

    async def has(self, user: str) -> bool:
        """Whether a person is a member of one of them, directly or through another.

        Args:
            user: the object id.

        Raises:
            TeamsError: it cannot be found out now.
        """
        wanted = self._config.groups
        if not wanted:
            return False
        found = await self._web.ask(
            Ask(
                whom="Microsoft Graph",
                method="POST",
                url=f"{self._config.graph}v1.0/users/{quote(user)}/checkMemberGroups",
                body={"groupIds": list(wanted)},
                token=await self._credential.token(f"{self._config.graph}.default"),
            )
        )
        groups = found.get("value")
        members = groups if isinstance(groups, list) else []
        return any(str(each).lower() in wanted for each in members)
