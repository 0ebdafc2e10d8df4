"""``python -m tests.fuzz NAME… --seconds N [--corpus DIR]``: coverage-guided fuzzing.

Needs ``pip install atheris`` (Python 3.11 on Linux), in an environment of its own.
Each target runs as a process of its own; what breaks one is written to the corpus
directory, and ``--replay FILE`` runs it again.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

_FUNCTIONS = Path(__file__).parents[2] / "infra" / "functions"
_MOST_BYTES = 64 * 1024
_SLOW = 10  # seconds for one input: a finding
_IN_JSON = 0.5
_HERE = 0.1
ODD: tuple[object, ...] = (
    *(None, True, 0, -1, 2**31, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308),
    *("", " ", "\x00", "\n", "\ud800", "\u202e", "<!channel>", "1.0", "x" * 3000),
    *("Started", "Scheduled", "Freeze", "relayed", "approve", "0001-01-01T00:00:00Z"),
    *("9999-12-31T23:59:59-23:59", "Mon, 02 Mar 2026 12:00:05 GMT", "{vm_id}", "*"),
    *([], {}, [[]], {"": ""}, ["a"] * 101, [{"EventId": "a"}], {"EventId": "a"}),
)


def main() -> int:
    """Fuzz each target in turn; 1 if any has a finding."""
    sys.path.insert(0, str(_FUNCTIONS))
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each")
    parser.add_argument("--corpus", type=Path, help="kept from run to run")
    parser.add_argument("--replay", type=Path, help="one input, for one NAME")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.replay:
        return replayed(given.names[0], given.replay)
    if find_spec("atheris") is None:
        parser.error("atheris is not installed: pip install atheris")
    if given.here:
        fuzzed(given.names[0], given.seconds, given.corpus)
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415  not before it is looked at

    names = given.names or [*TARGETS]
    if unknown := set(names) - set(TARGETS):
        parser.error(
            f"no target: {', '.join(unknown)}; there are: {', '.join(TARGETS)}"
        )
    corpus = given.corpus or Path(tempfile.mkdtemp(prefix="sebridge-fuzz-"))
    codes = [child(name, given.seconds, corpus) for name in names]
    return int(any(codes))


def child(name: str, seconds: int, corpus: Path) -> int:
    """Fuzz in a process: libFuzzer ends the one that it runs in."""
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    log, began = folder.with_suffix(".log"), time.monotonic()
    own = ("-m", "tests.fuzz", name, "--here", f"--seconds={seconds}")
    with log.open("wb") as output:
        done = subprocess.run(  # noqa: S603  ourselves
            [sys.executable, *own, f"--corpus={folder}"],
            stdout=output,
            stderr=output,
            check=False,
        )
    lines = log.read_text(errors="replace").splitlines()
    runs = [line.split()[-1] for line in lines if "number_of_executed_units" in line]
    verdict = "nothing found" if done.returncode == 0 else f"FINDING, see {log}"
    took = time.monotonic() - began
    sys.stdout.write(f"{name}: {(runs or ['?'])[-1]} runs in {took:.0f} s: {verdict}\n")
    sys.stdout.flush()
    return done.returncode


def fuzzed(name: str, seconds: int, folder: Path) -> None:
    """Fuzz here; does not return."""
    import atheris  # noqa: PLC0415  only who fuzzes has it

    with atheris.instrument_imports(include=["bridge", "approver"]):
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415  instrumented now
    target = TARGETS[name]
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={_MOST_BYTES}",
        f"-timeout={_SLOW}",
        f"-artifact_prefix={folder}{os.sep}",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]

    def mutate(body: bytes, largest: int, seed: int) -> bytes:
        chance = random.Random(seed)  # noqa: S311  libFuzzer's own lot
        if chance.random() < _IN_JSON and (made := rewritten(body, chance)):
            return made[:largest]
        found: bytes = atheris.Mutate(body, largest)
        return found

    arguments = [sys.argv[0], *options, str(folder)]
    atheris.Setup(arguments, target.run, custom_mutator=mutate)
    atheris.Fuzz()


def rewritten(body: bytes, chance: random.Random) -> bytes | None:
    """Return the JSON in a body with a value changed; None where there is none.

    The readers of JSON are C, so that no coverage shows the way through them.
    """
    lines = body.split(b"\n", 1)
    at = chance.randrange(len(lines))
    try:
        lines[at] = json.dumps(changed(json.loads(lines[at]), chance)).encode()
    except (ValueError, RecursionError):
        return None
    return b"\n".join(lines)


def changed(value: object, chance: random.Random) -> object:
    """Return a value with one thing in it replaced, repeated, renamed or gone."""
    if not value or not isinstance(value, (dict, list)) or chance.random() < _HERE:
        return chance.choice(ODD)
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    at = chance.randrange(len(pairs))
    key, inner = pairs[at]
    match chance.randrange(6):
        case 0:
            del pairs[at]
        case 1:
            pairs.insert(at, (f"{key}\u0130", inner))
        case _:
            pairs[at] = (key, changed(inner, chance))
    return dict(pairs) if isinstance(value, dict) else [one for _, one in pairs]


def replayed(name: str, path: Path) -> int:
    """Run one input; a finding raises."""
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415  the path was set above

    TARGETS[name].run(path.read_bytes())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
