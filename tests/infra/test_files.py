"""Every file under infra is checked by something, and this says by what."""

import subprocess
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]

PAGES = ("tests/docs/pages.py",)  # links, commands, configurations
CHECKED_BY = {
    "*.md": PAGES,
    "acceptance.sh": ("tests/infra/test_acceptance.py", ".ci/run"),
    "acceptance/*.sh": ("tests/infra/test_acceptance.py", ".ci/run"),
    "acceptance/*.py": (
        "tests/infra/test_acceptance.py",
        "tests/infra/test_acceptance_compare.py",
    ),
    "acceptance/*.json": ("tests/infra/test_acceptance.py",),
    "acceptance/slack.toml": ("tests/infra/test_acceptance.py",),
    "install.sh": ("tests/infra/test_install.py", ".ci/run"),
    "uninstall.sh": ("tests/infra/test_install.py", ".ci/run"),
    "lib.sh": ("tests/infra/test_install.py", ".ci/run"),
    "program.sh": ("tests/infra/test_install.py", ".ci/run"),
    "build.sh": ("tests/infra/test_packages.py", ".ci/run"),
    "verify.sh": ("tests/infra/test_packages.py", ".ci/run"),
    "verify-with-bicep.sh": ("tests/infra/test_verify_with_bicep.py", ".ci/run"),
    "packaging/deb/*": ("tests/infra/test_packages.py",),
    "packaging/kit-readme.md": ("tests/infra/test_packages.py",),
    "packaging/lock.sh": ("tests/infra/test_packages.py",),
    "packaging/machine.sh": ("infra/packaging/verify_debian.sh",),
    "packaging/verify_debian.sh": ("infra/verify.sh", ".ci/run"),
    "packaging/*.py": ("tests/infra/test_packages_tools.py",),
    "packaging/*.txt": ("tests/infra/test_packages_tools.py",),
    "packaging/hub/*": ("tests/infra/test_packages.py",),
    "packaging/rpm/*.spec": ("tests/infra/test_packages.py",),
    "packaging/sebridge-hub-setup": ("tests/infra/test_packages.py",),
    "packaging/sebridge-setup.8": ("tests/infra/test_packages.py",),
    "packaging/sebridge-setup": ("tests/infra/test_packages.py",),
    "bicep/*.bicep": ("tests/infra/test_bicep.py", ".ci/run"),
    "bicep/modules/*.bicep": ("tests/infra/test_bicep.py", ".ci/run"),
    "bicep/cloud-init.yaml": ("tests/infra/test_bicep.py",),
    "consumers/*.py": ("tests/infra/test_consumers.py",),
    "consumers/*.js": ("tests/infra/test_consumers.py",),
    "consumers/go/*": ("tests/infra/test_consumers.py", ".ci/run"),
    "consumers/java/pom.xml": ("tests/infra/test_consumers.py", ".ci/run"),
    "consumers/java/src/main/java/*": ("tests/infra/test_consumers.py", ".ci/run"),
    "consumers/csharp/*": ("tests/infra/test_consumers.py",),
    "consumers/function/*": ("tests/infra/test_functions_consumer.py",),
    "container/Dockerfile": ("tests/infra/test_container.py", ".ci/run"),
    "container/Dockerfile.dockerignore": ("tests/infra/test_container.py",),
    "fleet/*.py": ("tests/infra/test_rings.py",),
    "fleet/vm-application.sh": ("tests/infra/test_vm_application.py", ".ci/run"),
    "fleet/policy/policy.json": ("tests/infra/test_policy.py",),
    "fleet/kubernetes/*/*": ("tests/infra/test_kubernetes.py", ".ci/run"),
    "fleet/ansible/site.yml": ("tests/infra/test_ansible.py",),
    "fleet/ansible/roles/sebridge/*/main.yml": ("tests/infra/test_ansible.py",),
    "functions/.funcignore": ("tests/infra/test_functions_files.py",),
    "functions/approver/teams/*.py": ("tests/infra/test_functions_teams.py", ".ci/run"),
    "functions/approver/*.py": ("tests/infra/test_functions_flow.py", ".ci/run"),
    "functions/function_app.py": ("tests/infra/test_functions_flow.py", ".ci/run"),
    "functions/host.json": ("tests/infra/test_functions_files.py",),
    "functions/local.settings.example.json": ("tests/infra/test_functions_files.py",),
    "functions/simulator.json": ("tests/infra/test_functions_local.py",),
    "functions/slack-app.yaml": ("tests/infra/test_functions_files.py",),
    "functions/teams-app.json": ("tests/infra/test_functions_files.py",),
    "functions/requirements.txt": ("tests/infra/test_functions_files.py",),
    "hooks/hook.sh": ("tests/infra/test_hooks.py", ".ci/run"),
    "hooks/azure-lb-drain": ("tests/infra/test_hooks_azure.py", ".ci/run"),
    "hooks/etcd-move-leader": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/haproxy-drain": ("tests/infra/test_hooks_haproxy.py", ".ci/run"),
    "hooks/kubernetes-drain": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/nomad-drain": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/pacemaker-standby": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/patroni-switchover": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/run-parts": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/slurm-drain": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/sqlserver-failover": ("tests/infra/hook_worlds.py", ".ci/run"),
    "hooks/sqlserver-failover.ps1": ("tests/infra/test_hooks_powershell.py",),
    "hooks/stop-services": ("tests/infra/hook_worlds.py", ".ci/run"),
    "prometheus/*": ("tests/infra/test_prometheus.py",),
    "siem/*/*": ("tests/infra/test_siem.py",),
    "siem/*/*/*": ("tests/infra/test_siem.py",),
    "systemd/hook_launcher.py": (
        "tests/sinks/test_command_launcher.py",
        "tests/sinks/hook_machine.py",
    ),
    "windows/*.ps1": ("tests/infra/test_windows.py",),
    "windows/bridge.toml": ("tests/infra/test_windows.py",),
    "systemd/*": ("tests/infra/test_systemd_unit.py", "tests/infra/test_install.py"),
}


def checks_of(path: PurePosixPath) -> list[str]:
    return [glob for glob in CHECKED_BY if path.match(glob)]


def files() -> list[PurePosixPath]:
    """Return what is under infra, as git would commit it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        shown = subprocess.run(  # noqa: S603  fixed words
            [*command, "infra"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):  # a copy without its history
        found = (path for path in (ROOT / "infra").rglob("*") if path.is_file())
        shown = [path.relative_to(ROOT).as_posix() for path in found]
    found_paths = [PurePosixPath(one) for one in shown if one]
    return [one.relative_to("infra") for one in found_paths if one.suffix != ".pyc"]


def test_every_file_has_a_check() -> None:
    assert [str(path) for path in files() if not checks_of(path)] == []


def test_every_check_has_a_file() -> None:
    found = {glob for path in files() for glob in checks_of(path)}

    assert sorted(found) == sorted(CHECKED_BY)


def test_checks_name_what_they_check() -> None:
    """A check that does not know the name of a file cannot be its check."""
    for path in files():
        checks = [check for glob in checks_of(path) for check in CHECKED_BY[glob]]
        texts = "".join((ROOT / check).read_text() for check in checks)
        words = (path.name, f"*{path.suffix}", path.parent.name, path.stem)

        assert any(word and word in texts for word in words), path
