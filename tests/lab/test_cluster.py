"""Runs on a real Ray cluster of two nodes of this machine: whatever dies, each is trained once, to the same bits."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from waiting import wait_for

from maxsep.files import sha256_of
from maxsep.lab import grid
from maxsep.lab.cluster import Data
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SCRIPT = """
import json, sys
from maxsep.lab import grid
from maxsep.lab.spec import Execution, RunSpec

runs, epochs, count, dataset = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
device, where = sys.argv[5], json.loads(sys.argv[6])
specs = [
    RunSpec(dataset=dataset, seed=seed, epochs=epochs, batch_size=16, evaluate_every=epochs) for seed in range(count)
]
data = None if dataset == "digits" else "/proc/self/cwd/data"
execution = Execution(device=device, checkpoint_steps=20)
tell = lambda event: print(event.kind, event.index, event.message, flush=True)
summary = grid.run(specs, runs=runs, data_root=data, execution=execution, on_event=tell, **where)
print("end", len(summary.finished), len(summary.skipped), len(summary.failed), flush=True)
sys.exit(summary.status)
"""
HIDDEN = "/proc/self/cwd"
"""A path that is another folder for every process: what lies below it is on no shared storage."""
NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
"""Nodes on the loopback device alone."""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Two nodes with one CPU and a cache each."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray then takes 127.0.0.1 for this machine
    handler = signal.getsignal(signal.SIGTERM)
    where = {"num_cpus": 1, **NODE}
    caches = [{"env_vars": {"MAXSEP_CACHE": str(tmp_path / f"cache{number}")}} for number in range(2)]
    both = cluster_utils.Cluster()
    both.add_node(include_dashboard=False, **where, **caches[0])
    both.second = both.add_node(**where, **caches[1])
    monkeypatch.setenv("RAY_ADDRESS", both.address)
    signal.signal(signal.SIGTERM, handler)  # Ray has put its own there
    yield both
    both.shutdown()


@pytest.fixture
def drive(cluster, tmp_path):
    """Start the script in a working directory of its own; end what still runs."""
    drivers = []
    home = tmp_path / "home"
    home.mkdir()

    def start(runs, epochs=15, count=2, dataset="digits", device="cpu", on="ray", **where):
        command = [sys.executable, "-c", SCRIPT, str(runs), str(epochs), str(count), dataset, device]
        command.append(json.dumps({"on": on, **where}))
        drivers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.kill()
        driver.communicate()


@pytest.fixture
def client_server(cluster):
    """The address of a server of Ray's client, as the head of a cluster has one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ray.util.client.server", "--mode", "proxy", "--address", cluster.address]
    quiet = os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "0"}  # with it one in ten of the server's forks ends in SIGSEGV
    server = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], env=quiet)
    yield f"ray://127.0.0.1:{port}"
    server.terminate()
    server.wait()


def specs_of(epochs, count, dataset="digits"):
    return [
        RunSpec(dataset=dataset, seed=seed, epochs=epochs, batch_size=16, evaluate_every=epochs)
        for seed in range(count)
    ]


def sums(runs):
    return {path.parent.name: sha256_of(path) for path in runs.glob("*/weights.safetensors")}


def alone(folder, specs, **settings):
    grid.run(specs, runs=folder, execution=Execution(device="cpu"), **settings)
    return sums(folder)


def finished(runs):
    return [Run(path.parent) for path in runs.glob("*/result.json")]


def copied(cache):
    """The files of data in a node's cache, and when they were written."""
    files = [path for path in cache.glob("data/*/*/*") if path.name != "MANIFEST.json"]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def tasks(cache):
    """The processes that train on a node, by its cache."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::train"):
                found += [int(folder.name)] * (f"MAXSEP_CACHE={cache}".encode() in (folder / "environ").read_bytes())
        except OSError:
            continue
    return found


def output(driver, seconds=300):
    """The lines of a driver that has ended, but for those about the start of runs."""
    lines = driver.communicate(timeout=seconds)[0].splitlines()
    return sorted(line.strip() for line in lines if not line.startswith(("start", "lost")))


def is_saved(runs, count=1):
    return lambda: len({path.parent.parent for path in runs.glob("*/resume/save_*")}) >= count


def test_a_run_goes_on_when_its_process_is_killed(drive, tmp_path):
    runs = tmp_path / "runs"
    driver = drive(runs, count=1)
    wait_for(is_saved(runs))
    for pid in tasks(tmp_path / "cache0") + tasks(tmp_path / "cache1"):
        os.kill(pid, signal.SIGKILL)
    assert output(driver) == ["end 1 0 0", "finished 1"]
    assert sums(runs) == alone(tmp_path / "alone", specs_of(15, 1))
    assert [run.result["resumed"] for run in finished(runs)] == [1]


@pytest.mark.nightly
def test_a_run_goes_on_elsewhere_when_its_node_is_removed(cluster, drive, tmp_path):
    runs = tmp_path / "runs"
    driver = drive(runs, epochs=30)
    wait_for(is_saved(runs, count=2))
    cluster.remove_node(cluster.second, allow_graceful=False)
    assert output(driver) == ["end 2 0 0", "finished 1", "finished 2"]
    assert sums(runs) == alone(tmp_path / "alone", specs_of(30, 2))
    assert sorted(run.result["resumed"] for run in finished(runs)) == [0, 1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "hidden"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, True)]
)
def test_a_driver_that_died_is_started_again(drive, tmp_path, number, hidden):
    runs, typed = tmp_path / "home" / "runs", f"{HIDDEN}/runs" if hidden else tmp_path / "home" / "runs"
    driver = drive(typed, epochs=30, count=3)
    wait_for(lambda: [*tmp_path.glob("cache*/runs/*/*/resume/save_*" if hidden else "home/runs/*/resume/save_*")])
    driver.send_signal(number)
    driver.wait(timeout=300)
    assert driver.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not tasks(tmp_path / "cache0") and not tasks(tmp_path / "cache1"))
    assert not finished(runs)
    assert output(drive(typed, epochs=30, count=3))[0] == "end 3 0 0"
    assert sums(runs) == alone(tmp_path / "alone", specs_of(30, 3))
    if number == signal.SIGTERM or not hidden:  # else a copy on a node is found again by chance
        assert max(run.result["resumed"] for run in finished(runs)) == 1


@pytest.mark.nightly
def test_two_drivers_of_one_folder_train_every_run_once(drive, tmp_path):
    runs = tmp_path / "runs"
    both = [drive(runs, epochs=20, count=4) for _ in range(2)]
    lines = [line for driver in both for line in output(driver)]
    assert sorted(line for line in lines if line.startswith("finished")) == [f"finished {n}" for n in range(1, 5)]
    assert sums(runs) == alone(tmp_path / "alone", specs_of(20, 4))
    assert {run.result["resumed"] for run in finished(runs)} == {0}


@pytest.mark.nightly
def test_without_shared_storage_data_reach_a_node_once_and_runs_are_brought_back(drive, tmp_path, tiny_cifar):
    home, caches = tmp_path / "home", [tmp_path / "cache0", tmp_path / "cache1"]
    (home / "data").mkdir()
    tiny_cifar(home / "data")
    assert output(drive(f"{HIDDEN}/runs", epochs=3, count=2, dataset="cifar10"))[0] == "end 2 0 0"
    copies = [copied(cache) for cache in caches]
    assert [len(copy) for copy in copies] == [7, 7]
    (damaged,) = caches[0].glob("data/*/*/data_batch_1")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert output(drive(f"{HIDDEN}/runs", epochs=3, count=4, dataset="cifar10"))[0] == "end 2 2 0"
    assert (damaged.read_bytes(), copied(caches[1])) == (content, copies[1])
    assert sums(home / "runs") == alone(tmp_path / "alone", specs_of(3, 4, "cifar10"), data_root=home / "data")
    assert {run.spec.seed for run in finished(home / "runs")} == {0, 1, 2, 3}
    wait_for(lambda: not [*tmp_path.glob("cache*/runs/*/cifar10*")])


@pytest.mark.nightly
def test_a_driver_outside_the_cluster_sends_data_and_gets_runs_back(client_server, drive, tmp_path, tiny_cifar):
    home = tmp_path / "home"
    (home / "data").mkdir()
    tiny_cifar(home / "data")
    assert output(drive(home / "runs", epochs=2, on=client_server))[0] == "end 2 0 0"
    assert sums(home / "runs") == alone(tmp_path / "alone", specs_of(2, 2))
    assert output(drive(f"{HIDDEN}/hidden", epochs=2, dataset="cifar10", on=client_server))[0] == "end 2 0 0"
    theirs = alone(tmp_path / "cifar", specs_of(2, 2, "cifar10"), data_root=home / "data")
    assert sums(home / "hidden") == theirs
    assert len([*tmp_path.glob("cache*/data/*/*/test_batch")]) in (1, 2), "once for each node with a run"


def test_other_contents_of_the_same_sizes_are_other_data(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    data = Data.of({"a": tmp_path / "a"})
    assert data.is_here
    (tmp_path / "a").write_bytes(b"two")
    os.utime(tmp_path / "a", (1, 1))  # later than by the clock of a fast machine
    assert not data.is_here


@pytest.mark.slow
def test_the_command_trains_on_a_cluster_to_the_bits_of_one_process(cluster, tmp_path):
    options = ["reproduce", "demo", "--only", "head=plain", "--seeds", "2", "--epochs", "1", "--device", "cpu"]
    for name, on in (("ray", ["--on", "ray"]), ("alone", [])):
        subprocess.run([sys.executable, "-m", "maxsep", *options, *on, "--runs", tmp_path / name], check=True)
    assert len(sums(tmp_path / "ray")) == 2
    assert sums(tmp_path / "ray") == sums(tmp_path / "alone")


@pytest.mark.nightly
def test_the_script_for_slurm_goes_on_after_sigterm(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "howto" / "cluster.md"
    (script,) = re.findall(r"^```bash\n(#!.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    script = script.replace("table1", "demo --only head=plain --seeds 2 --epochs 80 --device cpu")
    (tmp_path / "job").write_text(script.replace("/shared", str(tmp_path)))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    start = partial(subprocess.Popen, ["bash", "job"], cwd=tmp_path, env=os.environ | {"PATH": path})
    job = start()
    wait_for(lambda: [*tmp_path.glob("runs/*/metrics.jsonl")])
    job.terminate()
    assert (job.wait(timeout=300), finished(tmp_path / "runs")) == (128 + signal.SIGTERM, [])
    assert start().wait(timeout=300) == 0
    assert 1 in [run.result["resumed"] for run in finished(tmp_path / "runs")]
    assert [*tmp_path.glob("report-*/report.html")]


FREE = "import ray; ray.init(log_to_driver=False); print(ray.available_resources().get('GPU', 0.0))"


@pytest.mark.nightly
def test_two_runs_share_a_gpu_and_a_third_waits(cluster, drive, tmp_path):
    """The GPU is one that a node only claims to have: its tasks train on its CPU."""
    runs, cache = tmp_path / "runs", tmp_path / "cache2"
    cluster.add_node(num_cpus=3, num_gpus=1, env_vars={"MAXSEP_CACHE": str(cache)}, **NODE)
    driver = drive(runs, epochs=150, count=3, device="auto", gpus=0.5)
    wait_for(is_saved(runs, count=2))
    free = subprocess.run([sys.executable, "-c", FREE], capture_output=True, text=True, check=True).stdout
    assert not finished(runs)
    assert (float(free), len(tasks(cache))) == (0.0, 2)
    kinds = [line.split()[0] for line in driver.communicate(timeout=300)[0].splitlines()]
    assert kinds == ["start", "start", "finished", "start", "finished", "finished", "end"]
    assert {run.result["hardware"]["device"] for run in finished(runs)} == {"cpu"}
