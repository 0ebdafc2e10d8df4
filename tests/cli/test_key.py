"""``sebridge key``: public keys, as the bridges read them."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli.main import main
from bridge.signing.keys import private_keys, public_keys
from tests.signing.test_dsse import KEY, OTHER
from tests.signing.test_keys import pem, public_pem


def test_public_keys_of_all_files_are_one_set(tmp_path: Path) -> None:
    old, new = tmp_path / "old.pem", tmp_path / "new.pem"
    old.write_text(pem(KEY))
    new.write_text(public_pem(OTHER))

    result = CliRunner().invoke(main, ["key", "show", str(old), str(new)])

    assert [*public_keys(result.output)] == [KEY.key_id, OTHER.key_id]
    assert all("d" not in one for one in json.loads(result.output)["keys"])


def test_file_without_a_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sign.pem"
    path.write_text("{}")

    result = CliRunner().invoke(main, ["key", "show", str(path)])

    assert result.exit_code == 2
    assert f"{path}: has no key" in result.output


def test_key_of_openssl_signs(tmp_path: Path) -> None:
    """The first step of config/signing.md."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    path = tmp_path / "sign.pem"
    words = "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out"
    command = [openssl, *words.split(), str(path)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603  # nothing from outside

    shown = CliRunner().invoke(main, ["key", "show", str(path)]).output

    (key,) = private_keys(path.read_text())
    assert public_keys(shown)[key.key_id].verifies(key.sign(b"x"), b"x")
