"""infra/verify-with-bicep.sh: what it asks of the compiler, and what it then says.

The compiler is a stand-in: it takes the arguments that the real one takes, and refuses
the deployments that ``fail()`` refuses. What the real one says is not known here.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "infra/verify-with-bicep.sh"
MAIN = (ROOT / "infra/bicep/main.bicep").read_text()
STAND_IN = """\
#!/usr/bin/env bash
set -eu
echo "$*" >>"$LOG"
case $1 in
  --version) echo "Bicep CLI version 0.99.0" ;;
  build | lint)
    [ -f "$2" ]
    cp bicepconfig.json "$LOG.rules"
    if [ "${SAY:-}" = "$1 $2" ]; then
      echo "$2(3,4) : Warning BCP318: it may be null" >&2
    fi
    [ "${FAIL:-}" != "$1 $2" ]
    ;;
  format)
    if [ "${SAY:-}" = "$1 $2" ]; then echo "another line"; fi
    cat "$2"
    ;;
  snapshot)
    if [ "${FAIL:-}" = "$1 $2" ]; then exit 1; fi
    if [ "${SAY:-}" = "$1 $2" ]; then exit 0; fi
    case $2 in
      closed-*|no-*|bare-*|half-*|teams-alone*)
        echo "fail: $TOLD" >&2
        exit 1
        ;;
    esac
    ;;
  *) exit 2 ;;
esac
"""


def messages() -> str:
    """Return every message of a wrong combination, as the templates have them."""
    texts = [path.read_text() for path in (ROOT / "infra/bicep").glob("*.bicep")]
    return "; ".join(one for t in texts for one in re.findall(r"\? \['(.+?)'\] :", t))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def run(log: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with the stand-in on the PATH."""
    programs = log.parent / "programs"
    programs.mkdir()
    (programs / "bicep").write_text(STAND_IN)
    (programs / "bicep").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    found = messages()
    return subprocess.run(  # noqa: S603 - our own script
        [SCRIPT, *arguments],
        env={"PATH": path, "LOG": str(log), "TOLD": found, **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_template_and_deployment_is_tried(log: Path) -> None:
    done = run(log)

    assert done.returncode == 0, done.stdout + done.stderr
    asked = log.read_text().splitlines()
    for path in (ROOT / "infra/bicep").rglob("*.bicep"):
        name = path.relative_to(ROOT / "infra/bicep").as_posix()
        for wanted in (f"build {name} --stdout", f"lint {name}"):
            assert wanted in asked
        assert f"format {name} --stdout" in asked
    assert "✗" not in done.stdout
    assert done.stdout.count("✓ snapshot ") == 11
    assert done.stdout.count("✓ refused ") == 12
    assert "0.99.0" in done.stdout
    in_group = [a for a in asked if a.startswith("snapshot bus.bicepparam")]
    assert "--resource-group sebridge" in in_group[0]
    of_all = [a for a in asked if a.startswith("snapshot audit.bicepparam")]
    assert "--resource-group" not in of_all[0]
    rules = json.loads(Path(f"{log}.rules").read_text())["analyzers"]["core"]["rules"]
    assert {one["level"] for one in rules.values()} == {"error"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"SAY": "build main.bicep"}, "✗ build main.bicep"),
        ({"SAY": "lint policy.bicep"}, "✗ lint policy.bicep"),
        ({"FAIL": "build modules/hub.bicep"}, "✗ build modules/hub.bicep"),
        ({"SAY": "format main.bicep"}, "✗ format main.bicep"),
        ({"FAIL": "snapshot hub.bicepparam"}, "✗ snapshot hub"),
        ({"SAY": "snapshot no-subnet.bicepparam"}, "✗ refused no-subnet"),
        ({"TOLD": "something else"}, "✗ refused half-slack"),
    ],
)
def test_whatever_does_not_hold_is_reported_and_the_rest_is_tried(
    log: Path, more: dict[str, str], words: str
) -> None:
    done = run(log, **more)

    assert done.returncode == 1
    assert words in done.stdout.splitlines()
    assert done.stdout.count("✓ snapshot ") >= 10


def test_without_a_compiler_nothing_is_said_to_hold(tmp_path: Path) -> None:
    bash, env = shutil.which("bash"), {"PATH": str(tmp_path)}
    assert bash is not None
    (tmp_path / "dirname").symlink_to(shutil.which("dirname") or "")
    done = subprocess.run(  # noqa: S603 - our own script
        [bash, SCRIPT], env=env, capture_output=True, text=True, check=False
    )

    assert done.returncode == 77
    assert "nothing was tried" in done.stdout


def test_wrong_word_is_reported(log: Path) -> None:
    assert run(log, "--now").returncode == 2


def test_nothing_is_left_in_the_tree(log: Path) -> None:
    run(log)

    assert not list((ROOT / "infra").rglob("*.bicepparam"))
    assert not list((ROOT / "infra").rglob("bicepconfig.json"))


def test_each_message_of_main_is_asked_for() -> None:
    text = SCRIPT.read_text()
    asked = [shlex.split(line) for line in re.findall(r"(?m)^refused .*$", text)]
    words = [one[-1] for one in asked if one[2] == "main.bicep"]

    for message in re.findall(r"\? \['(.+?)'\] : \[\]", MAIN):
        assert [one for one in words if one in message], message
