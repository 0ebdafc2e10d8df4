"""Makes credentials of Entra ID, and says which tokens a configuration needs.

azure-identity costs 7 MiB, so it is imported only when a credential is made.
"""

import os
import urllib.request
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from bridge.foundation.values import Address

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.core.credentials_async import AsyncTokenCredential

CredentialKind = Literal["managed-identity", "default", "workload-identity"]

_SECONDS = 5  # of a blocking request for a token
_LOGIN = "https://login.microsoftonline.com"


class TokenUse(Struct, frozen=True, kw_only=True):
    """A credential of Entra ID, and the scope of its tokens.

    Attributes:
        proxy: the proxy to Entra; None = the environment's.
    """

    credential: CredentialKind
    client_id: str
    scope: str
    proxy: Address | None

    def open(self) -> "AsyncTokenCredential":
        """Open the credential; see ``open_credential``."""
        proxy = self.proxy.reveal() if self.proxy is not None else None
        return open_credential(self.credential, client_id=self.client_id, proxy=proxy)


def open_credential(
    kind: CredentialKind, *, client_id: str, proxy: str | None
) -> "AsyncTokenCredential":
    """Make a credential.

    The environment's proxy for http is not used. The token endpoint of the VM is
    http://169.254.169.254: through a proxy, the bridge would get the token of the
    proxy's VM, or none. Entra's endpoint is https, and may need the proxy.

    Args:
        kind: the kind as in the configuration.
        client_id: the id of a user-assigned identity; "" = the system-assigned one.
        proxy: URL of the proxy to Entra; None = the environment's for https.

    Raises:
        ValueError: something that this kind of credential needs is missing.
    """
    from azure.identity import aio  # noqa: PLC0415  costs memory

    made: AsyncTokenCredential = _made(aio, kind, client_id, proxy)
    return made


def blocking_credential(kind: CredentialKind, *, client_id: str) -> "TokenCredential":
    """Make a credential for a thread: ``get_token`` blocks, for some seconds at most.

    Raises:
        ValueError: something that this kind of credential needs is missing.
    """
    from azure import identity  # noqa: PLC0415  costs memory

    limits = {"connection_timeout": _SECONDS, "read_timeout": _SECONDS}
    made: TokenCredential = _made(identity, kind, client_id, None, **limits)
    return made


def _made(
    library: Any, kind: CredentialKind, client_id: str, proxy: str | None, **limits: int
) -> Any:
    options: dict[str, Any] = {"use_env_settings": False, **limits}
    if proxy := proxy or _environments_proxy():
        options["proxies"] = {"https": proxy}
    if kind == "managed-identity":
        return library.ManagedIdentityCredential(client_id=client_id or None, **options)
    if kind == "workload-identity":
        return library.WorkloadIdentityCredential(
            client_id=client_id or None, **options
        )
    if client_id:
        options["managed_identity_client_id"] = client_id
    return library.DefaultAzureCredential(**options)


def _environments_proxy() -> str | None:
    """Return the proxy to Entra of the environment; None = there is none.

    The environment is not passed in: azure-identity and urllib (which also knows the
    proxy of Windows) read that of the process, so another would count only in part.
    """
    login = os.environ.get("AZURE_AUTHORITY_HOST") or _LOGIN
    host = urlsplit(login if "//" in login else f"//{login}").hostname or ""
    if urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get("https")
