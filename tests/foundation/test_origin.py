"""How to install an extra: by the way that the program itself was installed."""

import json
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from bridge.foundation.errors import NAME, command_of, install_command

ROOT = Path(__file__).parents[2]


def noted(url: str, **more: object) -> str:
    return json.dumps({"url": url, **more})


def test_program_of_an_index_is_had_from_it_by_name() -> None:
    assert command_of(None, "slack") == "pip install 'scheduled-events-bridge[slack]'"


def test_wheel_and_checkout_are_named_by_their_path(tmp_path: Path) -> None:
    wheel = tmp_path / "a b" / "x.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"")

    record = noted(wheel.as_uri(), archive_info={})
    assert command_of(record, "slack") == f"pip install '{wheel}[slack]'"
    record = noted(tmp_path.as_uri(), dir_info={"editable": True})
    assert command_of(record, "dev") == f"pip install '{tmp_path}[dev]'"


def test_wheel_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"

    assert command_of(noted(wheel.as_uri()), "slack") == (
        f"pip install '{wheel}[slack]', once x.whl is there again"
    )


@pytest.mark.parametrize(
    ("record", "address"),
    [
        (noted("https://e.example/x.whl"), "https://e.example/x.whl"),
        (
            noted("https://e.example/r", vcs_info={"vcs": "git", "commit_id": "abc"}),
            "git+https://e.example/r@abc",
        ),
    ],
)
def test_address_is_named_as_pip_takes_it(record: str, address: str) -> None:
    assert command_of(record, "slack") == f"pip install '{NAME}[slack] @ {address}'"


def test_command_is_that_of_this_installation() -> None:
    record = distribution(NAME).read_text("direct_url.json")

    python = f"{sys.executable} -m pip"  # another pip would install it elsewhere
    wanted = command_of(record, "slack").replace("pip", python, 1)
    assert install_command("slack") == wanted


def test_program_that_is_not_installed_names_its_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [])  # where installed packages are looked for

    assert install_command("x") == f"{sys.executable} -m pip install '{ROOT}[x]'"


@pytest.mark.parametrize(
    ("maker", "extra", "command"),
    [
        ("package", "hub", "apt-get install ./sebridge-hub_*.deb, or dnf install "),
        ("package", "simulator", "python3 -m venv more && more/bin/pip install "),
        ("archive", "hub", "python3 -m venv more && more/bin/pip install "),
        ("image", "hub", "docker build -f infra/container/Dockerfile --build-arg "),
    ],
)
def test_command_is_that_of_who_made_the_installation(
    maker: str, extra: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / "installed").write_text(f"{maker}\n")

    assert install_command(extra, tmp_path).startswith(command)
