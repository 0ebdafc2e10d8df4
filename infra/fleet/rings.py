#!/usr/bin/env python3
"""Brings a version of the VM Application to a fleet, ring by ring, with a health gate.

A ring is first given the version, machine by machine. Then it is left alone for a
while, and each machine is asked whether its bridge is ready. Where too many are not,
nothing more is changed. A machine's tag names its ring (1, 2, …) or says never;
machines without the tag are spread by a hash of their id, the same each time.

Needs Python 3.11+, the Azure CLI, and the right to change the VMs and run commands
there.
"""

import argparse
import hashlib
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vms import Fault, Machine, Outcome, Work, look, machines, obstacle

APPLICATION = re.compile(
    "/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft[.]Compute"
    "/galleries/[^/]+/applications/[^/]+",
    re.IGNORECASE,
)

# -- rings -------------------------------------------------------------------------


def in_rings(found: Iterable[Machine], sizes: Sequence[int]) -> list[list[Machine]]:
    """Put machines into rings: by their tags, else by a hash; 0 is a ring for all."""
    rings: list[list[Machine]] = [[] for _ in sizes]
    loose = []
    for machine in found:
        if machine.ring.isdecimal() and 1 <= int(machine.ring) <= len(sizes):
            rings[int(machine.ring) - 1].append(machine)
        elif not machine.ring:
            loose.append(machine)
        elif machine.ring != "never":
            allowed = f"1 to {len(sizes)}, or never"
            raise Fault(
                f"{machine.name}: its tag names the ring {machine.ring!r}: {allowed}"
            )
    loose.sort(key=lambda one: hashlib.sha256(one.id.lower().encode()).digest())
    for ring, size in zip(rings, sizes, strict=True):
        places = max(size - len(ring), 0) if size else len(loose)
        ring.extend(loose[:places])
        del loose[:places]
    return rings


def sizes_for(count: int) -> list[int]:
    """Return the sizes of rings: a tenth, at most 20; half, at most 200; all."""
    return [min(20, max(1, count // 10)), min(200, max(1, count // 2)), 0]


@dataclass(slots=True)
class Gate:
    """Counts what became of a ring, and says when to change nothing more.

    Attributes:
        percent: how many of those that were changed may fail.
        size: machines in the ring.
        tried: machines that were changed, or asked without a change.
    """

    percent: int
    size: int
    tried: int = 0
    failed: int = 0

    @property
    def is_shut(self) -> bool:
        """Whether more have failed than the whole ring may have."""
        return self.failed * 100 > self.size * self.percent

    @property
    def objection(self) -> str:
        """Why the next ring is not begun; empty where it is."""
        if self.failed * 100 > self.tried * self.percent:
            return f"{self.failed} of {self.tried} failed"
        if self.size and not self.tried:
            return (
                "no machine of this ring could be changed, so it proves nothing: "
                "tag another one with the number of this ring"
            )
        return ""

    def on_each(
        self, do: Callable[[Machine], Outcome], ring: Sequence[Machine], at_once: int
    ) -> list[Outcome]:
        """Do something on the machines, as many at once, until the gate is shut."""
        lock = threading.Lock()

        def unless_shut(machine: Machine) -> Outcome | None:
            if self.is_shut:
                return None
            outcome = do(machine)
            with lock:  # here, so that the next machine of this thread sees it
                self.failed += outcome.what == "failed"
                say(outcome)
            return outcome

        with ThreadPoolExecutor(max_workers=at_once) as pool:
            return [found for found in pool.map(unless_shut, ring) if found]


def say(outcome: Outcome) -> None:
    """Print what became of a machine."""
    why = f": {outcome.why}" if outcome.why else ""
    print(f"  {outcome.machine.name}: {outcome.what}{why}", flush=True)


def one_ring(
    ring: Sequence[Machine], work: Work, args: argparse.Namespace
) -> tuple[Gate, list[Outcome]]:
    """Change the machines of a ring, wait, and ask them."""
    gate = Gate(args.failures, len(ring))
    found = gate.on_each(work.deploy, ring, args.at_once)
    gate.tried = sum(one.what != "skipped" for one in found)
    done = [one.machine for one in found if one.what == "done"]
    if done and not gate.is_shut:
        time.sleep(args.soak)
        gate.on_each(work.ask, done, args.at_once)
    return gate, found


def roll_out(
    rings: Sequence[Sequence[Machine]], work: Work, args: argparse.Namespace
) -> int:
    """Go through the rings; return 1 where a gate was shut, else 0."""
    skipped = 0
    before: Counter[str] = Counter()
    for number, ring in enumerate(rings, start=1):
        print(f"ring {number} of {len(rings)}: {len(ring)} machines", flush=True)
        gate, found = one_ring(ring, work, args)
        skipped += sum(one.what == "skipped" for one in found)
        before.update(one.before for one in found if one.before)
        objection = gate.objection
        if objection and (gate.failed or number < len(rings)):
            old = [f"{version} on {count}" for version, count in before.most_common()]
            print(f"ring {number}: stopped: {objection}")
            print(f"what was changed had: {', '.join(old) or 'no version'}")
            print("the way back: this command with the --version from before")
            return 1
        print(f"ring {number}: {gate.tried} tried, {gate.failed} failed", flush=True)
    if skipped:
        print(f"{skipped} machines were skipped: run it again for them later")
    return 0


def show(rings: Sequence[Sequence[Machine]], work: Work) -> None:
    """Print what would be done."""
    for number, ring in enumerate(rings, start=1):
        print(f"ring {number} of {len(rings)}: {len(ring)} machines")
        for machine in ring:
            why = obstacle(machine, look(machine))
            if machine.kind not in work.applications:
                why = f"no --{machine.kind} was given"
            print(f"  {machine.name}: {f'skipped: {why}' if why else work.version}")


# -- the command -------------------------------------------------------------------


def sizes_of(text: str) -> list[int]:
    """Read the sizes of rings, such as 20,200,all."""
    if not re.fullmatch(r"([1-9]\d*,)*all", text):
        raise argparse.ArgumentTypeError(
            "whole numbers with commas, and all at the end"
        )
    return [0 if one == "all" else int(one) for one in text.split(",")]


def version_of(text: str) -> str:
    """Read a version as galleries have it."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise argparse.ArgumentTypeError("three numbers, such as 1.2.3")
    return text


def application_of(text: str) -> str:
    """Read the resource id of an application of a gallery."""
    if not APPLICATION.fullmatch(text):
        raise argparse.ArgumentTypeError(
            "the id of an application, without its version"
        )
    return text


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    found = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = found.add_argument
    add(
        "--version", type=version_of, required=True, help="of the application, as 1.2.3"
    )
    for kind, of in (
        ("linux", "Linux"),
        ("arm64", "Linux on Arm"),
        ("windows", "Windows"),
    ):
        text = f"id of the application for {of}; such machines are skipped without it"
        add(f"--{kind}", type=application_of, metavar="ID", help=text)
    add(
        "-g",
        "--group",
        action="append",
        default=[],
        help="resource group; again for more (default: the whole subscription)",
    )
    add(
        "--rings",
        type=sizes_of,
        metavar="SIZES",
        help="as 20,200,all (default: a tenth, at most 20; half, at most 200; all)",
    )
    add(
        "--tag",
        default="sebridge-ring",
        help="the tag that names a machine's ring (default: sebridge-ring)",
    )
    add(
        "--failures",
        type=int,
        default=5,
        metavar="PERCENT",
        help="of a ring that may fail (default: 5)",
    )
    add(
        "--soak",
        type=float,
        default=600,
        metavar="SECONDS",
        help="between a ring and its gate (default: 600)",
    )
    add(
        "--at-once",
        type=int,
        default=20,
        metavar="N",
        help="machines at a time (default: 20)",
    )
    add(
        "--every",
        type=float,
        default=15,
        metavar="SECONDS",
        help="between two looks at a machine (default: 15)",
    )
    add(
        "--patience",
        type=float,
        default=1800,
        metavar="SECONDS",
        help="for one machine (default: 1800)",
    )
    add(
        "--dry-run",
        action="store_true",
        help="print who would get what, and change nothing",
    )
    return found


def main() -> int:
    """Read the command line, and do it."""
    args = parser().parse_args()
    kinds = ("linux", "arm64", "windows")
    applications = {kind: vars(args)[kind] for kind in kinds if vars(args)[kind]}
    if not applications:
        parser().error("name an application: --linux, --arm64 or --windows")
    work = Work(applications, args.version, args.every, args.patience)
    try:
        found = machines(args.group, args.tag)
        rings = in_rings(found, args.rings or sizes_for(len(found)))
        if args.dry_run:
            show(rings, work)
            return 0
        return roll_out(rings, work, args)
    except Fault as fault:
        print(f"rings.py: {fault}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
