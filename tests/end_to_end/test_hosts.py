"""Two hosts, which are two loopback addresses of this machine behind a local sshd."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from job import metrics_of

from simtrain.errors import ConfigError
from simtrain.launch.hosts import probe_hosts
from simtrain.launch.torchrunx_internals import slurm_hosts
from simtrain.run.checkpoint import read_checkpoint
from simtrain.run.logged import read_lineage

# torchrunx runs what is for a loopback address without SSH. These two, reserved for documentation,
# are no such addresses until SSH's settings say so.
HOSTS = ("198.51.100.1", "198.51.100.2")
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


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


@pytest.fixture
def start_on_hosts(ssh_config, start):
    """Starts cart-poles on both hosts."""
    hosts = ("--hosts", *HOSTS, "--ssh-config", str(ssh_config))
    return partial(start, "cartpole-balance", "--gpu-ids", "None", "--num-envs", "4", *hosts)


@pytest.mark.slow
def test_two_hosts_train_together_and_stop_together(start_on_hosts):
    """Also when all processes on both hosts are told to stop at once."""
    job = start_on_hosts("--max-iterations", "1000000", "--grace-seconds", "100")
    job.wait_for("  env steps 768  ")
    listens_at = {address for address, _ in job.listening()}
    assert listens_at
    assert not listens_at & {"0.0.0.0", "::"}
    assert list(job.run.glob(".simtrain-job-*/key"))
    job.signal_all(signal.SIGTERM)
    job.wait_for_end(250.0)  # what runs on the other host may end a moment after the command
    assert job.wait() == 143, job.output
    assert not list(job.run.glob(".*"))
    assert f"2 ranks on {HOSTS[0]} cpu, {HOSTS[1]} cpu" in job.output
    assert "the policy so far is saved" in job.output
    assert [line["env_steps"] for line in metrics_of(job.run)[:3]] == [256, 512, 768]
    logs = {path.name for path in job.run.glob("torchrunx/*/*")}
    assert logs == {f"{host}{rank}.log" for host in HOSTS for rank in ("", "[0]")}


@pytest.mark.slow
def test_a_population_spreads_over_hosts(start_on_hosts):
    flags = ("--max-iterations", "2", "--logger", "none", "--env.episode-length-s", "1")
    flags = (*flags, "--population", "2", "--population-interval", "2", "--eval-episodes", "2")
    job = start_on_hosts(*flags)
    assert job.wait() == 0, job.output
    assert f"2 members on {HOSTS[0]} cpu, {HOSTS[1]} cpu" in job.output
    (exchange,) = read_lineage(job.run)
    assert exchange["iteration"] == 2
    assert [one["member"] for one in exchange["members"]] == [0, 1]
    assert read_checkpoint(job.run / "best.pt")["iter"] == 2


@pytest.mark.slow
def test_a_killed_command_leaves_no_process_on_other_hosts(start_on_hosts):
    job = start_on_hosts("--torchrunx-log-dir", "")
    job.wait_until(lambda: len(job.ranks()) == 2)  # while they start
    job.process.kill()
    job.wait_for_end()


def test_a_host_that_does_not_answer_is_named_with_the_reason(tmp_path):
    nothing_listens = write_ssh_config(tmp_path, free_port())
    with pytest.raises(ConfigError, match=rf"host {HOSTS[0]} cannot be used: .*Unable to connect"):
        probe_hosts(HOSTS, str(nothing_listens), list_gpus=False)


def test_loopback_addresses_are_this_machine():
    gpus = probe_hosts(("127.0.0.2", "127.0.0.3"), None, list_gpus=False)
    assert gpus == [(os.environ.get("CUDA_VISIBLE_DEVICES"), [])] * 2


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (("node", "node"), "--hosts names node more than once"),
        (("nowhere.invalid",), r"host nowhere\.invalid cannot be used: gaierror"),
    ],
)
def test_mistakes_with_hosts(hosts, message):
    with pytest.raises(ConfigError, match=message):
        probe_hosts(hosts, None, list_gpus=False)


def test_slurm_is_for_use_inside_an_allocation(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_JOBID", raising=False)
    with pytest.raises(ConfigError, match="inside a SLURM allocation"):
        slurm_hosts()
