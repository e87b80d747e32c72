"""Processes of torchrun or `train`, on one machine and on two: DDP, FSDP2, parts of batches. All equal one process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torchrun_rank import CASES

from maxsep.files import read_json
from maxsep.lab.engine import train
from maxsep.lab.engine.train import make_fabric
from maxsep.lab.engine.trainer import DeadlineError
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

pytestmark = pytest.mark.distributed
SCRIPT = Path(__file__).with_name("torchrun_rank.py")
NAMESPACES = ("maxsep-a", "maxsep-b")


def start(*arguments, prefix=(), **environment):
    command = [*prefix, sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)


def finish(*processes):
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(errors)


def torchrun(*options):
    return "-m", "torch.distributed.run", *options


def check_equal(folder, alone, name):
    spec = CASES[name][0]
    ours, theirs = (load_file(place / spec.name / "weights.safetensors") for place in (folder, alone))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[key] - theirs[key]).abs().max()) for key in ours) <= 1e-12
    metrics, expected = (Run(place / spec.name).metrics for place in (folder, alone))
    assert (metrics["num_test"], metrics["top1"]) == (expected["num_test"], expected["top1"])
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    thresholds = [(Run(place / spec.name).unknown or {}).get("thresholds", {}) for place in (folder, alone)]
    assert thresholds[0] == pytest.approx(thresholds[1])
    return Run(folder / spec.name).result


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    finish(start(SCRIPT, folder, 1))
    return folder


@pytest.mark.slow
def test_two_processes_equal_one_in_every_way_to_share_a_batch(alone, tmp_path):
    """With an uneven last batch, an odd test set, class weights, frozen weights and resume points."""
    finish(start(*torchrun("--standalone", "--nproc-per-node", 2), SCRIPT, tmp_path, 2))  # on a port that is free
    for name, (_, how) in CASES.items():
        result = check_equal(tmp_path, alone, name)
        assert (result["hardware"]["devices"], result["execution"]["sharded"]) == (2, how.get("sharded", False))
        assert result["resumed"] == 2 * (name == "fsdp resumed")
    for rank in range(2):
        facts = read_json(tmp_path / f"facts-{rank}.json")
        assert set(facts["sharded"]) == {name for name in CASES if "fsdp" in name}
        assert facts["refused"] == ["fsdp resumed"], "a process that sees other resume points is an error on both"
        assert (tmp_path / f"ended-{rank}").read_text() == "True", "gloo's group outlived the run"


@pytest.mark.slow
def test_processes_that_train_starts_resume_where_one_stopped_and_take_the_same_path(alone, tmp_path):
    with pytest.raises(DeadlineError):
        train(CASES["ddp"][0], runs=tmp_path, execution=Execution(device="cpu"), progress=False, deadline=0.0)
    finish(start(SCRIPT, tmp_path, 2, "ddp"))
    result = check_equal(tmp_path, alone, "ddp")
    assert (result["hardware"]["devices"], result["resumed"]) == (2, 1)


LAST_LINES = """
import os, sys, torch
from maxsep.lab.engine.processes import end_group
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
model(torch.ones(1, 3)).sum().backward()
def count():
    return sum("gloo" in open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task"))
before = count()
del model
end_group()
assert before > 0 and count() == 0, (before, count())
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_no_thread_of_gloo_outlives_the_group_of_ddp(tmp_path):
    """One that does may ask for Python's lock while Python ends, which aborts the process."""
    finish(start("-c", LAST_LINES, tmp_path / "ranks"))


@pytest.fixture
def namespaces():
    """Two network namespaces with an address each, joined by a cable, as two machines are."""
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need root and the program ip")
    run = lambda *words: subprocess.run(["ip", *words], check=True, capture_output=True)  # noqa: E731
    made = []
    try:
        for name in NAMESPACES:
            run("netns", "add", name)
            made.append(name)
        run("link", "add", "cable-a", "netns", NAMESPACES[0], "type", "veth", "peer", "cable-b", "netns", NAMESPACES[1])
        for number, name in enumerate(NAMESPACES, start=1):
            device = f"cable-{name[-1]}"
            run("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", device)
            run("-n", name, "link", "set", device, "up")
            run("-n", name, "link", "set", "lo", "up")
        yield
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made: {error.stderr.decode().strip()}")
    finally:
        for name in made:
            run("netns", "delete", name)


@pytest.mark.nightly
def test_two_machines_equal_one_process(namespaces, alone, tmp_path):
    names = ["ddp in parts", "fsdp"]
    first = "--master-addr", "10.77.0.1", "--master-port", 29500  # in namespaces of its own
    processes = [
        start(
            *torchrun("--nnodes", 2, "--nproc-per-node", 1, "--node-rank", node, *first),
            *(SCRIPT, tmp_path, 1, *names),
            prefix=("ip", "netns", "exec", name),
            GLOO_SOCKET_IFNAME=f"cable-{name[-1]}",
        )
        for node, name in enumerate(NAMESPACES)
    ]
    finish(*processes)
    for name in names:
        assert check_equal(tmp_path, alone, name)["hardware"]["devices"] == 2


@pytest.mark.parametrize(
    ("environment", "execution", "fields", "named"),
    [
        ({}, {"sharded": True}, {}, "torchrun"),
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}, {}, {}, "devices"),
        ({"WORLD_SIZE": "1"}, {"sharded": True, "compile": True}, {}, "compile"),
        ({"WORLD_SIZE": "1"}, {"sharded": True}, {"dataset": "osr_cifar10_0", "features_at": (1,)}, "features_at"),
    ],
)
def test_executions_that_no_run_can_have_are_refused(monkeypatch, environment, execution, fields, named):
    for name, value in (environment | {"TORCHELASTIC_RUN_ID": "1"} if environment else {}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=named):
        make_fabric(RunSpec(**fields), Execution(device="cpu", **execution))
