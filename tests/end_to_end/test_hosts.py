"""Two hosts, which are two loopback addresses of this machine behind a local sshd."""

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from job import Job

from simtrain.errors import ConfigError
from simtrain.launch.hosts import probe_hosts
from simtrain.launch.torchrunx_internals import slurm_hosts
from simtrain.run.checkpoint import read_checkpoint
from simtrain.run.logged import read_lineage

# torchrunx runs what is for a loopback address without SSH. These two, reserved for documentation,
# are no such addresses until SSH's settings say so.
HOSTS = ("198.51.100.1", "198.51.100.2")
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.timeout(600)


def free_port() -> int:
    with socket.create_server(("127.0.0.2", 0)) as server:
        return server.getsockname()[1]


def write_ssh_config(folder: Path, port: int) -> Path:
    path = folder / "ssh_config"
    aliases = zip(HOSTS, ("127.0.0.2", "127.0.0.3"), strict=True)
    path.write_text(
        "".join(f"Host {host}\n  HostName {address}\n" for host, address in aliases)
        + f"Host *\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder / 'user'}\n"
    )
    return path


@pytest.fixture(scope="module")
def ssh_config(tmp_path_factory):
    """SSH settings for a local sshd, which ends with the tests."""
    if SSHD is None:
        pytest.skip("sshd is not installed (Debian: apt-get install openssh-server)")
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True)
    port = free_port()
    settings = folder / "sshd_config"
    settings.write_text(
        f"Port {port}\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\n"
        f"HostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd started by root asks for it
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(settings)], stderr=log)
    try:
        deadline = time.monotonic() + 20.0
        while True:
            assert server.poll() is None, (folder / "sshd.log").read_text()
            assert time.monotonic() < deadline
            try:
                socket.create_connection(("127.0.0.3", port), timeout=1.0).close()
                break
            except OSError:
                time.sleep(0.1)
        yield write_ssh_config(folder, port)
    finally:
        server.terminate()
        server.wait()


def test_two_hosts_train_together_and_stop_together(ssh_config, tmp_path):
    """Also when all processes on both hosts are told to stop at once."""
    flags = ("--gpu-ids", "None", "--num-envs", "4", "--max-iterations", "1000000")
    flags = (*flags, "--grace-seconds", "100")
    hosts = ("--hosts", *HOSTS, "--ssh-config", str(ssh_config))
    job = Job(tmp_path, "cartpole-balance", *flags, *hosts)
    try:
        job.wait_for("  env steps 768  ")
        listens_at = {address for address, _ in job.listening()}
        assert listens_at
        assert not listens_at & {"0.0.0.0", "::"}
        assert list(job.run.glob(".simtrain-job-*/key"))
        job.signal_all(signal.SIGTERM)
        assert job.wait() == 143, job.output
    finally:
        job.kill()
    assert not list(job.run.glob(".*"))
    assert f"2 ranks on {HOSTS[0]} cpu, {HOSTS[1]} cpu" in job.output
    assert "the policy so far is saved" in job.output
    lines = [json.loads(line) for line in (job.run / "metrics.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines[:3]] == [256, 512, 768]
    logs = {path.name for path in job.run.glob("torchrunx/*/*")}
    assert logs == {f"{host}{rank}.log" for host in HOSTS for rank in ("", "[0]")}


def test_a_population_spreads_over_hosts(ssh_config, tmp_path):
    flags = ("--gpu-ids", "None", "--num-envs", "4", "--max-iterations", "2", "--logger", "none")
    flags = (*flags, "--population", "2", "--population-interval", "2", "--eval-episodes", "2")
    hosts = ("--hosts", *HOSTS, "--ssh-config", str(ssh_config), "--env.episode-length-s", "1")
    job = Job(tmp_path, "cartpole-balance", *flags, *hosts)
    try:
        assert job.wait() == 0, job.output
    finally:
        job.kill()
    assert f"2 members on {HOSTS[0]} cpu, {HOSTS[1]} cpu" in job.output
    (exchange,) = read_lineage(job.run)
    assert exchange["iteration"] == 2
    assert [one["member"] for one in exchange["members"]] == [0, 1]
    assert read_checkpoint(job.run / "best.pt")["iter"] == 2


def test_a_killed_command_leaves_no_process_on_other_hosts(ssh_config, tmp_path):
    flags = ("--gpu-ids", "None", "--num-envs", "4", "--torchrunx-log-dir", "")
    hosts = ("--hosts", *HOSTS, "--ssh-config", str(ssh_config))
    job = Job(tmp_path, "cartpole-balance", *flags, *hosts)
    try:
        job.wait_until(lambda: len(job.ranks()) == 2)  # while they start
        job.process.kill()
        job.wait_for_end()
    finally:
        job.kill()


def test_a_host_that_does_not_answer_is_named_with_the_reason(tmp_path):
    nothing_listens = write_ssh_config(tmp_path, free_port())
    with pytest.raises(ConfigError, match=rf"host {HOSTS[0]} cannot be used: .*Unable to connect"):
        probe_hosts(HOSTS, str(nothing_listens), list_gpus=False)


def test_a_host_name_that_does_not_resolve_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"host nowhere\.invalid cannot be used: gaierror"):
        probe_hosts(("nowhere.invalid",), None, list_gpus=False)


def test_loopback_addresses_are_this_machine():
    gpus = probe_hosts(("127.0.0.2", "127.0.0.3"), None, list_gpus=False)
    assert gpus == [(os.environ.get("CUDA_VISIBLE_DEVICES"), [])] * 2


@pytest.mark.parametrize(
    ("hosts", "ssh_config", "message"),
    [
        (("node", "node"), None, "--hosts names node more than once"),
        (("node",), "/no/such/file", "--ssh-config /no/such/file is not a file"),
    ],
)
def test_mistakes_with_hosts(hosts, ssh_config, message):
    with pytest.raises(ConfigError, match=message):
        probe_hosts(hosts, ssh_config, list_gpus=False)


def test_slurm_is_for_use_inside_an_allocation(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_JOBID", raising=False)
    with pytest.raises(ConfigError, match="inside a SLURM allocation"):
        slurm_hosts()
