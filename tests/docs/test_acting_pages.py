"""The pages about acting on the machine: hooks, and the probe of load balancers."""

import re

import pytest

from bridge.foundation.clock import PauseMeter
from tests.docs.pages import ROOT, Block, blocks, every_block, pages, section
from tests.support.fakes import FakeClock

TRAFFIC = "infra/traffic.md"


def flat(text: str) -> str:
    return " ".join(text.split())


# -- hooks -------------------------------------------------------------------------


def commands() -> list[Block]:
    return [b for b in every_block("toml") if 'type = "command"' in b.text]


@pytest.mark.parametrize("block", commands(), ids=str)
def test_sink_of_a_command_is_shown_as_the_service_as_shipped_wants_it(
    block: Block,
) -> None:
    """``check`` warns of ``command =`` if the shipped service is installed."""
    assert re.search(
        r'^unit = "sebridge-hook@[\w-]+\.service"', block.text, re.MULTILINE
    )
    assert not re.search(r"^command = ", block.text)


PAUSE = section("infra/hooks/README.md", "## What a pause means for a cluster")


@pytest.mark.parametrize("cluster", ["Patroni", "etcd", "Pacemaker"])
def test_page_says_what_a_pause_means_for_a_cluster(cluster: str) -> None:
    """How long a pause it stands, what a longer one does, and what helps before."""
    (row,) = [r for r in PAUSE.splitlines() if r.startswith(f"| {cluster} ")]
    limit, longer, before = (cell.strip() for cell in row.split("|")[2:5])

    assert re.search(r"\b\d+ s\b", limit)
    assert longer
    assert "`" in before


def test_pages_agree_on_the_length_of_a_pause() -> None:
    """The shortest that is told, and the longest that the unit outlives."""
    operate = flat(section("infra/operate.md", "## A pause of the VM"))
    unit = (ROOT / "infra/systemd/sebridge.service").read_text()

    least = min(s / 10 for s in range(1, 100) if paused(s / 10))
    assert least == 3
    assert "A pause of three seconds or more is measured" in operate
    assert "`pausedSeconds`" in PAUSE
    assert "from 3 s on" in flat(PAUSE)
    assert "A pause of 5 minutes is beyond all three" in PAUSE
    assert "outlives five minutes" in operate
    assert "WatchdogSec=6min" in unit
    assert "hooks/README.md#what-a-pause-means-for-a-cluster" in operate


def paused(seconds: float) -> float:
    """Return how long a pause is for the bridge, if a wait ends so much too late."""
    meter = PauseMeter(FakeClock())
    meter.late(seconds)
    return meter.total


def test_pages_show_a_hook() -> None:
    assert {block.page for block in commands()} >= {"README.md"}
    cloud_init = (ROOT / "infra/bicep/cloud-init.yaml").read_text()
    assert '# unit = "sebridge-hook@drain.service"' in cloud_init
    assert "command = [" not in cloud_init


@pytest.mark.parametrize("page", ["README.md", "infra/hooks/README.md"])
def test_picture_of_a_drain_is_beside_the_hooks(page: str) -> None:
    (picture,) = re.findall(r"!\[([^\]]{40,})\]\((\S*drain\.svg)\)", pages()[page])

    assert (ROOT / page).parent.joinpath(picture[1]).resolve().is_file()


def test_newcomer_needs_no_more_than_ten_lines() -> None:
    page = "infra/hooks/README.md"
    (block,) = [b for b in blocks(page) if b.mark == "command: first-hook"]

    assert len(block.text.splitlines()) <= 10


# -- the probe ---------------------------------------------------------------------


def test_load_balancer_has_all_probed_up() -> None:
    text = section(TRAFFIC, "## Azure Load Balancer (Standard)")

    for said in (
        *("-NoHealthyBackendsBehavior AllProbedUp", "-IntervalInSeconds 5"),
        *("-ProbeThreshold 1", "noHealthyBackendsBehavior: 'AllProbedUp'"),
        *("intervalInSeconds: 5", "probeThreshold: 1"),
    ):
        assert said in text


def test_page_warns_of_the_basic_load_balancer() -> None:
    text = flat(section(TRAFFIC, "## Azure Load Balancer (Standard)"))

    assert re.search(r"\*\*[^*]*Basic Load Balancer[^*]*\*\*", text)  # in bold
    warning = text.partition("Basic Load Balancer")[2]
    assert "no `AllProbedUp`" in warning
    assert "retired" in warning


def test_page_begins_with_a_warning_of_scale_sets_that_repair() -> None:
    first = (ROOT / TRAFFIC).read_text().split("\n\n")[1]

    assert first.startswith("> [!WARNING]\n")
    warning = flat(first.replace("> ", ""))
    assert "deletes the VM and its disks" in warning
    assert "health from the Application Health extension" in warning
    assert '{"ApplicationHealthState":"Healthy"}' in section(TRAFFIC, "## Scale sets")


def test_page_asks_for_a_quick_probe_for_evictions() -> None:
    text = flat(section(TRAFFIC, "## What to know first"))

    assert re.search(r"\*\*[^*]*Preempt[^*]*30 s", text)
    assert "interval 5 s and threshold 1" in text
    gateway = section(TRAFFIC, "## Application Gateway")
    assert "--interval 5 " in gateway
    assert "--threshold 1" in gateway


def test_stopped_forwarder_is_said_to_be_out_and_upgrades_roll() -> None:
    text = flat(section(TRAFFIC, "## What to know first"))

    assert re.search(r"\*\*[^*]*stopped[^*]*out[^*]*\*\*", text)
    assert "batches" in text
    assert re.search(r"\*\*[^*]*machines do not[^*]*\*\*", text)


@pytest.mark.parametrize(
    "balancer",
    [
        *("Azure Load Balancer (Standard)", "Application Gateway", "Front Door"),
        *("Traffic Manager", "HAProxy", "nginx", "Consul", "Kubernetes"),
    ],
)
def test_each_balancer_has_its_settings(balancer: str) -> None:
    text = section(TRAFFIC, f"## {balancer}")

    assert "```" in text
    assert "9466" in text or "--probe-path /sebridge" in text


def test_closed_network_lets_the_prober_in() -> None:
    text = (ROOT / "infra/systemd/closed-network.conf").read_text()
    allowed = re.findall(r"(?m)^IPAddressAllow=(.*)$", text)

    assert any("168.63.129.16" in line.split() for line in allowed)
