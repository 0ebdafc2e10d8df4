"""The test vectors of *Verifiable CloudEvents with DSSE*, commit d54e6bb.

Cases 3 and 4 were signed with other blanks in their data than the page prints. Cases 1
and 2 are of an earlier form of the payload; 6a and 6b have a payload that is no JSON.
"""

import base64

from bridge.signing.dsse import SignedEvent

_D = 97358161215184420915383655311931858321456579547487070936769975997791359926199
_X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
_Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
_DATA = b' {\n  "hello" : "world"\n }'
_WIDER = b' {\n    "hello" : "world"\n  }'
_EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "example/uri",
    "type": "example.type",
    "datacontenttype": "application/json",
}


def jwk() -> dict[str, str]:
    """Return the private key of the vectors."""

    def text(number: int) -> str:
        raw = number.to_bytes(32, "big")
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    return {"kty": "EC", "crv": "P-256", "x": text(_X), "y": text(_Y), "d": text(_D)}


def _event(data: bytes = _DATA, **attributes: str) -> SignedEvent:
    return SignedEvent(attributes={**_EVENT, **attributes}, data=data)


VECTORS = {
    "3": (
        _event(_WIDER, subject="", time="2020-06-18T17:24:53Z"),
        (
            "eyJwYXlsb2FkVHlwZSI6Imh0dHBzOi8vY2xvdWRldmVudHMuaW8vdmVyaWZpYWJpbGl0eS9kc3Nl"
            "L3YwLjEiLCJwYXlsb2FkIjoiZXlKamIzSmxJam9pZDB0RFlUaHpjVE5rZVdjdk1EQmFhVVJSZVM5"
            "aFdFRlpNWFJsY0ZGdWNrdE1ZVFo0VURCWk0wUXZVVDBpZlE9PSIsInNpZ25hdHVyZXMiOlt7Imtl"
            "eWlkIjoidGVzdGtleSIsInNpZyI6IlVNcWlOWXA3U1FacTZNSGRtczRkbjJtc0hHaW5MSHZaYVVW"
            "M2doY2ovY241QmkzZDVqejBzZmhtOXBaODlDY09hK1dXdGpZNmNadmo3Yy90T1dzVFZnPT0ifV19"
        ),
    ),
    "4": (
        _event(_WIDER, subject="", time="2020-06-18T19:24:53+02:00"),
        (
            "eyJwYXlsb2FkVHlwZSI6Imh0dHBzOi8vY2xvdWRldmVudHMuaW8vdmVyaWZpYWJpbGl0eS9kc3Nl"
            "L3YwLjEiLCJwYXlsb2FkIjoiZXlKamIzSmxJam9pZDB0RFlUaHpjVE5rZVdjdk1EQmFhVVJSZVM5"
            "aFdFRlpNWFJsY0ZGdWNrdE1ZVFo0VURCWk0wUXZVVDBpZlE9PSIsInNpZ25hdHVyZXMiOlt7Imtl"
            "eWlkIjoidGVzdGtleSIsInNpZyI6IlVNcWlOWXA3U1FacTZNSGRtczRkbjJtc0hHaW5MSHZaYVVW"
            "M2doY2ovY241QmkzZDVqejBzZmhtOXBaODlDY09hK1dXdGpZNmNadmo3Yy90T1dzVFZnPT0ifV19"
        ),
    ),
    "5": (
        _event(
            "\N{CLOWN FACE}".encode(),
            type="example.type.binary",
            datacontenttype="application/octet-stream",
        ),
        (
            "eyJwYXlsb2FkVHlwZSI6Imh0dHBzOi8vY2xvdWRldmVudHMuaW8vdmVyaWZpYWJpbGl0eS9kc3Nl"
            "L3YwLjEiLCJwYXlsb2FkIjoiZXlKamIzSmxJam9pY1VOVFpXbGFhMU1yYUVnNVYybERiR1p4Tm5C"
            "c1puRlpUbFo1TW10MmVGZFNabTlDY2t4RmVtOUVhejBpZlE9PSIsInNpZ25hdHVyZXMiOlt7Imtl"
            "eWlkIjoidGVzdGtleSIsInNpZyI6IkYyaXAweG1nSlgzdWdIWkM2dE1ycjdBMkVxYWkwOHJhR3JU"
            "d2R5aC9PR0RJSXJGN0J5TTJ5SVRMS3FOckYzZHpaR1IybzBDczlmRUJGZEx4Uk9VeUVRPT0ifV19"
        ),
    ),
    "7": (
        _event(exta="value1", extb="value2"),
        (
            "eyJwYXlsb2FkVHlwZSI6Imh0dHBzOi8vY2xvdWRldmVudHMuaW8vdmVyaWZpYWJpbGl0eS9kc3Nl"
            "L3YwLjEiLCJwYXlsb2FkIjoiZXlKamIzSmxJam9pVEZSblVVdElSMmhsWnpaVU5EaDRjRWRIY2pW"
            "NlRtdGthSEF5TW10bGJscERUM0ZwWTBaMFNUUlRRVDBpTENKbGVIUWlPaUpJUWpGd1pUUXpNVVp2"
            "VVZwU2MwcGllVXhPVFhFd1VXRkJkbkZRZEcxb1pHazRaRWhIVTJoaVNrRlZQU0lzSW5OcFoyNWxa"
            "R1Y0ZEdGMGRISnpJanBiSW1WNGRHRWlMQ0psZUhSaUlsMTkiLCJzaWduYXR1cmVzIjpbeyJrZXlp"
            "ZCI6InRlc3RrZXkiLCJzaWciOiIyZzFVb0FRcHoxb1BqWlRQUlplK3l2THpaUU5FQ1pha2piWlZY"
            "aXpEd2RNbmVJSCsrLzUzdVhOMmJDU2tWSkltZndPaVl5S0JtNG12c01ISlhJVWh6Zz09In1dfQ=="
        ),
    ),
}
OLD_FORM = (
    "eyJwYXlsb2FkVHlwZSI6Imh0dHBzOi8vY2xvdWRldmVudHMuaW8vdmVyaWZpYWJpbGl0eS9kc3Nl"
    "L3YwLjEiLCJwYXlsb2FkIjoiNXh6NS9WdG94TkpWWWFZeG1MZUw2eEw5STZDYXY5UDNnb2g2cXlD"
    "WUdmUT0iLCJzaWduYXR1cmVzIjpbeyJrZXlpZCI6InRlc3RrZXkiLCJzaWciOiJ3WWo4YlJQWFlD"
    "SUxyeXdzUDdXR1VCd1RKc25aSFlYTUhpWEZtWWh1QkdhOU1ocDdYNHZFN1FBYkhXbytXZitjTURB"
    "YjN6dXlwRjVVbVdwZGtJUGppUT09In1dfQ=="
)
CORRUPT = (
    "eyJwYXlsb2FkVHlwZSI6Imh0dHBzOi8vY2xvdWRldmVudHMuaW8vdmVyaWZpYWJpbGl0eS9kc3Nl"
    "L3YwLjEiLCJwYXlsb2FkIjoiZXlKamIzSmxJam9pVEZSblVVdElSMmhsWnpaVU5EaDRjRWRIY2pW"
    "NlRtdGthSEF5TW10bGJscERUM0ZwWTBaMFNUUlRRVDBpTENKbGVIUWlPaUpyVlRGUU9HSkVZVVZ1"
    "ZVU1b1oyeFhlbVJVU2s1SWFEYzNhMmhPVjFOYVpXSkNWWGgxWmxaTk1uQlZQU0lzSW5OcFoyNWxa"
    "R1Y0ZEdGMGRISnpJanBiSW1WNGRHRWlYWDA5Iiwic2lnbmF0dXJlcyI6W3sia2V5aWQiOiJ0ZXN0"
    "a2V5Iiwic2lnIjoibHBPcHNqUnZ2NFBDb05zQUlSRFl1MXphWlNBVkV2ajVSQzFGSk1yTDEyekJL"
    "a2IxTjhFSGlQc3FJMStId0V5V092SHU3eHE1aDBkN3BWWTRBdElOM3c9PSJ9XX0="
)
