"""Faults of the configuration: their lines, and their suggestions."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from bridge.configuration.load import load, load_for_approver, load_settings
from bridge.foundation.errors import ConfigError

SINK = '[[sinks]]\nname = "siem"\ntype = "webhook"\nurl = "https://siem.example/"\n'
BUS = 'namespace = "contoso.servicebus.windows.net"\nqueue = "vm-approvals"\n'
SLACK = '[[sinks]]\nname = "ops"\ntype = "slack"\ntoken = "x"\nchannel = "C1"\n'


def faults(
    folder: Path, text: str | bytes, environ: Mapping[str, str] | None = None
) -> list[str]:
    """Return the faults of a file, without the name of the file."""
    path = folder / "b.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    assert all(fault.startswith(str(path)) for fault in caught.value.faults)
    return [fault.removeprefix(str(path)) for fault in caught.value.faults]


# -- lines -----------------------------------------------------------------------


def test_fault_of_a_key_names_its_line(tmp_path: Path) -> None:
    text = f'{SINK}timeout = "soon"\n\n[imds]\npoll_intervall = 1\n[log]\nlevel = "x"\n'

    assert [one.split(": ")[:2] for one in faults(tmp_path, text)] == [
        [":5", "sinks.siem.timeout"],
        [":8", "imds.poll_intervall"],
        [":10", "log.level"],
    ]


def test_faults_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    keys = "".join(f"key{n} = {n}\n" for n in range(11))

    found = faults(tmp_path, f"{keys}{SINK}")

    assert [one.split(": ")[0] for one in found] == [f":{n}" for n in range(1, 12)]


@pytest.mark.parametrize(
    ("text", "line", "place"),
    [
        ("[[sinks]]\nname = 'a'\ntype = 'webhook'\n", 1, "sinks.a.url"),
        ("[[sinks]]\ntype = 'webhook'\nurl = 'https://a.example'", 1, "sinks[0].name"),
        (f"{SINK}[sinks.when]\nscope = 'x'", 6, "sinks.siem.when.scope"),
        (f"{SINK}when = {{ scope = 'x' }}", 5, "sinks.siem.when.scope"),
        (f"{SINK}when.scope = 'x'", 5, "sinks.siem.when.scope"),
        (
            f"{SINK}when.transitions = [\n  'started', # [\n  'begun',\n]",
            7,
            "sinks.siem.when.transitions[1]",
        ),
        (f"{SINK}headers = {{ x-a = 'b', x-c = 5 }}", 5, "sinks.siem.headers.x-c"),
        (f"{SINK}[approvals]\n{BUS}[[approvals.rules]]\naction = 'x'", 9, "approvals"),
        (f"[approvals]\n{BUS}queue_ = 1\n", 4, "approvals.queue_"),
        (f"{SINK}[approvals]\n\n\nqueue = 'q'", 5, "approvals.namespace"),
    ],
)
def test_fault_has_the_line_of_its_key_or_table(
    text: str, line: int, place: str, tmp_path: Path
) -> None:
    (fault,) = faults(tmp_path, text)

    assert fault.startswith(f":{line}: {place}")


def test_fault_of_a_variable_has_no_line(tmp_path: Path) -> None:
    environ = {"SEBRIDGE__LOG__LEVEL": "loud"}

    (fault,) = faults(tmp_path, f"[log]\nlevel = 'info'\n{SINK}", environ)

    assert fault.startswith(": SEBRIDGE__LOG__LEVEL: must be one of")


# -- an empty file ---------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "sinks = []", '[log]\nlevel = "info"'])
def test_file_without_any_work_is_a_fault(text: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, text)

    assert fault.startswith(": has neither [[sinks]] nor [approvals] nor [traffic]: ")
    assert "--allow-empty" in fault
    assert load(tmp_path / "b.toml", {}, allow_empty=True).sinks == ()


def test_probe_alone_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text("[traffic]\n")

    assert load(path, {}).traffic is not None


@pytest.mark.parametrize(
    "text", ["[[sink]]", "[aprovals]", "[trafic]", "sinks = 5", "approvals=1"]
)
def test_emptiness_does_not_follow_from_another_fault(
    text: str, tmp_path: Path
) -> None:
    (fault,) = faults(tmp_path, text)

    assert "neither" not in fault


def test_approvals_alone_are_no_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f"[approvals]\n{BUS}")

    assert load(path, {}).approvals is not None


# -- approvals -------------------------------------------------------------------


def test_faulty_approvals_are_not_reported_as_missing(tmp_path: Path) -> None:
    slack = f'{SLACK}buttons = true\nbutton_secret = "{"s" * 64}"\n'

    (fault,) = faults(tmp_path, f"{slack}[approvals]\n{BUS}on_unknown = 'drop'\n")
    (other,) = faults(tmp_path, slack)

    assert fault.startswith(":11: approvals.on_unknown: must be one of")
    assert other.startswith(":6: sinks.ops.buttons: needs [approvals]")


# -- addresses -------------------------------------------------------------------

URLS = [
    ("http://169.254.169.254/x", "169.254.169.254 is the metadata service"),
    ("http://0xa9fea9fe/", "169.254.169.254 is the metadata service"),
    ("http://[::ffff:169.254.169.254]/", "is the metadata service"),
    ("https://168.63.129.16:32526/", "168.63.129.16 is the wire server"),
    ("http://169.254.1.1/", "is link-local"),
    ("http://siem.example:99999/", "must have a port of 1 to 65535"),
    ("http://siem.example:0/", "must have a port of 1 to 65535"),
    ("http://siem.example:https/", "must have a port of 1 to 65535"),
    ("https://siem example/", "must have no blank in its host"),
    ("https://siem.example /", "must have no blank in its host"),
    ("https://siem\\t.example/", "must have no blank in its host"),
    ("https://user:a b@siem.exa\\u00a0mple/", "must have no blank in its host"),
    ("https://siem..example/", "must have a host name or an IP address"),
    ("https://<host>/", "must have a host name or an IP address"),
    ("https:///path", "must be"),
    ("https://[::1/", "must be"),
]
PLACES = {
    "sinks.siem.url": '[[sinks]]\nname = "siem"\ntype = "webhook"\nurl = "{}"',
    "sinks.siem.proxy": SINK + 'proxy = "{}"',
    "sinks.ops.webhook_url": '[[sinks]]\nname = "ops"\ntype = "slack"\n'
    'webhook_url = "{}"',
    "approvals.http_proxy": f'[approvals]\n{BUS}transport = "amqp-websocket"\n'
    'http_proxy = "{}"',
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("url", "what"), URLS)
def test_unusable_url_is_a_fault(
    url: str, what: str, place: str, tmp_path: Path
) -> None:
    (fault,) = faults(tmp_path, PLACES[place].format(url))

    assert fault.split(": ")[1] == place
    assert what in fault


@pytest.mark.parametrize(
    "url",
    [
        *("https://siem.example/a b?q={vm}", "http://127.0.0.1:1", "http://[::1]:80/"),
        *("https://user:p^w%20d@siem.example:443/", "https://siem.example./x"),
        *("http://10.0.0.4/", "http://h:/x", "https://bücher.example/", "http://a_b/"),
    ],
)
def test_valid_url_is_accepted(url: str, tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(PLACES["sinks.siem.url"].format(url), encoding="utf-8")

    assert load(path, {}).sinks[0].name == "siem"


def test_only_imds_may_be_link_local(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f"[imds]\nendpoint = 'http://169.254.169.254'\n{SINK}")

    assert load(path, {}).imds.endpoint == "http://169.254.169.254"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[imds]\nendpoint = 'http://127.0.0.1:99999'\n", "imds.endpoint: must have a"),
        ("[imds]\nendpoint = 'http://local host'\n", "imds.endpoint: must have no bla"),
        ("[http]\nlisten = 'my host:9465'\ntoken = 't'\n", "http.listen: must be host"),
        ("[http]\nlisten = '127.0.0.1:99999'\n", "http.listen: must be host:port"),
    ],
)
def test_invalid_listen_address_is_a_fault(
    text: str, what: str, tmp_path: Path
) -> None:
    (fault,) = faults(tmp_path, text + SINK)

    assert what in fault


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("169.254.169.254", "leads to a forbidden address"),
        ("fe80::1", "leads to a forbidden address: fe80::1 is link-local"),
        ("siem example", "must be a host name or an IP address"),
        ("siem\\t", "must be a host name or an IP address"),
        ("a..b", "must have a host name or an IP address"),
    ],
)
def test_unusable_host_of_syslog_is_a_fault(
    host: str, what: str, tmp_path: Path
) -> None:
    text = f'[[sinks]]\nname = "s"\ntype = "syslog"\nhost = "{host}"\n'

    (fault,) = faults(tmp_path, text)

    assert fault.startswith(f":4: sinks.s.host: {what}")


@pytest.mark.parametrize(
    "key",
    [
        'namespace = "169.254.169.254"',
        (
            'connection_string = "Endpoint=sb://169.254.169.254/;SharedAccessKeyName=n;'
            'SharedAccessKey=k"'
        ),
    ],
)
def test_namespace_that_is_the_metadata_service_is_a_fault(
    key: str, tmp_path: Path
) -> None:
    text = f'[[sinks]]\nname = "b"\ntype = "servicebus"\nqueue = "q"\n{key}\n'

    (fault,) = faults(tmp_path, text)

    assert "leads to a forbidden address: 169.254.169.254 is the metadata" in fault


# -- references ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("env:", "names no variable: write env:NAME"),
        ("env: ", "names no variable: write env:NAME"),
        ("file:", "names no file: write file:PATH"),
        ("evn:TOKEN", "'evn:' is no reference; did you mean 'env:'?"),
        ("ENV:TOKEN", "'ENV:' is no reference; did you mean 'env:'?"),
        ("envs:TOKEN", "'envs:' is no reference; did you mean 'env:'?"),
        ("en:TOKEN", "'en:' is no reference; did you mean 'env:'?"),
        ("emv:TOKEN", "'emv:' is no reference; did you mean 'env:'?"),
        ("File:/etc/token", "'File:' is no reference; did you mean 'file:'?"),
        ("fiel:./token", "'fiel:' is no reference; did you mean 'file:'?"),
        ("flie:C:/token", "'flie:' is no reference; did you mean 'file:'?"),
    ],
)
@pytest.mark.parametrize("place", ["sinks.siem.auth.token", "sinks.siem.headers.x-key"])
def test_misspelt_reference_is_no_secret(
    place: str, reference: str, what: str, tmp_path: Path
) -> None:
    auth = f'auth = {{ type = "bearer", token = "{reference}" }}'
    header = f'headers = {{ x-key = "{reference}" }}'

    (fault,) = faults(tmp_path, SINK + (auth if "auth" in place else header))

    assert fault.startswith(f":5: {place}: {what}")
    assert "TOKEN" not in fault


@pytest.mark.parametrize(
    "secret",
    ["user:password", "Basic:eA==", "end:a b", "xoxb-1", "file", "a:b", "eny:", "::"],
)
def test_secret_with_a_colon_is_a_secret(secret: str, tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f'[http]\ntoken = "{secret}"\n{SINK}')

    token = load(path, {}).http.token

    assert token is not None
    assert token.reveal() == secret


# -- encodings and units ---------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-8-sig", ""),
    ],
)
def test_encoding_of_the_file_is_named_in_the_fault(
    encoding: str, name: str, tmp_path: Path
) -> None:
    """Windows PowerShell writes UTF-16 by default."""
    path = tmp_path / "b.toml"
    path.write_bytes(SINK.encode(encoding))

    if name:
        (fault,) = faults(tmp_path, SINK.encode(encoding))
        assert fault == (
            f": cannot be read: it is {name} text, and must be UTF-8: save it as that"
        )
    else:
        assert load(path, {}).sinks[0].name == "siem"


def test_utf_16_secret_file_is_named_in_the_fault(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2", encoding="utf-16")
    path = (tmp_path / "token").as_posix()

    (fault,) = faults(tmp_path, f'[http]\ntoken = "file:{path}"\n{SINK}')

    assert fault.endswith(
        "cannot be read (UTF-16 text, and must be UTF-8: save it as that)"
    )


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("timeout", "30S", "30s"),
        ("timeout", "500 MS", "500 ms"),
        ("timeout", "1.5H", "1.5h"),
        ("gzip", "500kb", "500KB"),
        ("gzip", "1gib", "1GiB"),
    ],
)
def test_unit_in_another_case_is_corrected_in_the_fault(
    key: str, value: str, meant: str, tmp_path: Path
) -> None:
    (fault,) = faults(tmp_path, f'{SINK}{key} = "{value}"')

    assert fault.startswith(f":5: sinks.siem.{key}: must be a number of ")
    assert f'did you mean "{meant}"?' in fault


@pytest.mark.parametrize("value", ["30x", "S", "1.2.3S", "30 SS", ""])
def test_unknown_unit_is_not_guessed(value: str, tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, f'{SINK}timeout = "{value}"')

    assert "did you mean" not in fault


# -- names that clash ------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"), [("Ops", "ops"), ("web-1", "web_1"), ("A-b", "a_B")]
)
def test_names_that_variables_cannot_tell_apart_clash(
    first: str, second: str, tmp_path: Path
) -> None:
    text = SINK.replace("siem", first, 1) + SINK.replace("siem", second, 1)
    variable = first.upper().replace("-", "_")

    (fault,) = faults(tmp_path, text)

    assert fault == (
        f":6: sinks.{second}.name: clashes with sinks.{first}: "
        f"SEBRIDGE__SINKS__{variable}__… means both"
    )


def test_repeated_name_is_named_in_the_fault(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path, SINK + SINK)

    assert fault.endswith(": sinks.siem.name: 'siem' is the name of another sink")


def test_variables_that_mean_the_same_clash(tmp_path: Path) -> None:
    environ = {"SEBRIDGE__LOG__LEVEL": "info", "sebridge__log__level": "debug"}

    (fault,) = faults(tmp_path, SINK, environ)

    assert fault == (
        ": sebridge__log__level: means the same as SEBRIDGE__LOG__LEVEL: "
        "unset one of them"
    )


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("level = info", 'text needs quotation marks: "…"'),
        ("level = in-fo # quietly", 'text needs quotation marks: "…"'),
        ("level = $LEVEL", 'did you mean "env:LEVEL"?'),
        ("level = ${LEVEL}", 'did you mean "env:LEVEL"?'),
    ],
)
def test_value_without_quotation_marks_says_what_was_meant(
    line: str, hint: str, tmp_path: Path
) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f"[log]\n{line}\n")

    with pytest.raises(ConfigError, match="no valid TOML") as caught:
        load(path, {})

    assert str(caught.value).endswith(f"; {hint}")


@pytest.mark.parametrize("given", ["$SLACK", "${SLACK}"])
def test_variable_of_a_shell_is_no_secret(given: str, tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f'[[sinks]]\nname = "a"\ntype = "slack"\nwebhook_url = "{given}"\n')

    with pytest.raises(ConfigError, match="did you mean 'env:SLACK'"):
        load(path, {"SLACK": "https://a.example/"})


def test_misspelt_choice_has_a_suggestion(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text('[log]\nlevel = "inf"\n')

    with pytest.raises(ConfigError, match="did you mean 'info'"):
        load(path, {}, allow_empty=True)


def test_file_of_a_hub_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "hub.toml"
    path.write_text('[hub]\nlisten = "127.0.0.1:9470"\n')

    for read in (load, load_settings, load_for_approver):
        with pytest.raises(ConfigError, match="is the file of a hub") as caught:
            read(path, {})
        assert f"`sebridge hub -c {path}`" in str(caught.value)
