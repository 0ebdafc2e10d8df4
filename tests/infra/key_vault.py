"""A local Key Vault with two keys, whose signatures differ each time, as there."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from approver.signing import Vault
from bridge.signing.keys import PrivateKey
from tests.signing.test_dsse import KEY, OTHER

VERSIONS = {"a" * 32: KEY, "b" * 32: OTHER}
_PREHASHED = ec.ECDSA(utils.Prehashed(hashes.SHA256()))


def _key(request: web.Request) -> PrivateKey:
    assert request.headers["Authorization"] == "Bearer T"
    assert request.query["api-version"]
    return VERSIONS[request.match_info["version"]]


async def _shown(request: web.Request) -> web.Response:
    return web.json_response({"key": {**_key(request).public.jwk, "kid": "x"}})


async def _sign(request: web.Request) -> web.Response:
    asked = await request.json()
    assert asked["alg"] == "ES256"
    digest = base64.urlsafe_b64decode(f"{asked['value']}==")
    r, s = utils.decode_dss_signature(_key(request).key.sign(digest, _PREHASHED))
    value = base64.urlsafe_b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
    return web.json_response({"value": value.rstrip(b"=").decode()})


@asynccontextmanager
async def key_vault(*versions: str, status: int = 200) -> AsyncIterator[Vault]:
    """Yield what signs by these versions of a key; or let Key Vault answer a status."""

    async def refused(_: web.Request) -> web.Response:
        return web.json_response({}, status=status)

    app = web.Application()
    path = "/keys/sign/{version}"
    app.router.add_get(path, _shown if status == 200 else refused)
    app.router.add_post(f"{path}/sign", _sign if status == 200 else refused)
    async with TestServer(app) as server:
        base = str(server.make_url("/keys/sign/"))
        vault = Vault(tuple(f"{base}{one}" for one in versions), token)
        try:
            yield vault
        finally:
            await vault.close()


async def token(scope: str) -> str:
    assert scope.startswith("https://")
    return "T"
