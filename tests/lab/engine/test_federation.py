"""Federated averaging: what a round is, what is averaged, and that interruptions change no bit."""

import copy
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from maxsep.lab import networks
from maxsep.lab.data import prepare
from maxsep.lab.engine import assemble, checkpoint, rounds, step, train, trainer
from maxsep.lab.engine.federation import FederatedStep, shared_values
from maxsep.lab.engine.order import Order
from maxsep.lab.engine.rounds import Rounds
from maxsep.lab.spec import Execution, RunSpec, options

CPU = Execution(device="cpu")
SPEC = RunSpec(
    epochs=3, batch_size=32, max_train=150, max_test=100, evaluate_every=1, augmentation="crop_flip",
    clients=4, concentration=0.5, local_epochs=2, learning_rate=0.05,
)  # fmt: skip
LABELS = torch.arange(26) % 3


def run(runs, spec=SPEC, execution=CPU):
    return train(spec, runs=runs, execution=execution, progress=False)


def weights(folder):
    return (folder / "weights.safetensors").read_bytes()


def rows(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("network", ["mlp", "resnet32"])
def test_one_client_without_momentum_is_ordinary_training_bit_for_bit(tmp_path, network):
    few = 150 if network == "mlp" else 40
    usual = RunSpec(
        network=network, epochs=2, batch_size=32, momentum=0.0, max_train=few, max_test=20, augmentation="crop_flip",
        schedule="cosine_steps",
    )  # fmt: skip
    alone = usual.replace(clients=1)
    assert alone.name != usual.name
    folders = run(tmp_path, usual), run(tmp_path, alone)
    assert weights(folders[0]) == weights(folders[1])
    assert rows(folders[0]) == rows(folders[1])


def test_with_momentum_it_is_not_since_every_round_forgets_it(tmp_path):
    usual = SPEC.replace(clients=0, concentration=0.1, local_epochs=1)
    assert weights(run(tmp_path, usual)) != weights(run(tmp_path, usual.replace(clients=1)))


def hand_written(spec, optimiser):
    """Federated averaging in a dozen lines; data, start and order are the run's."""
    data = prepare(spec, None)
    network = assemble.build_model(spec, data.train.shape, data.train.num_classes)
    mean, std = assemble.normalisation(spec.normalisation, data)
    images = (data.train.images.float() / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    order = Rounds(spec, data.train.labels)
    generator = torch.Generator().manual_seed(assemble.derive(spec.seed, "order"))
    for _ in range(spec.epochs):
        found = []
        for own in order.clients:
            client = copy.deepcopy(network).train()
            updates = optimiser(client.parameters())
            for _ in range(spec.local_epochs):
                for batch in torch.split(own[torch.randperm(len(own), generator=generator)], spec.batch_size):
                    updates.zero_grad()
                    nn.functional.cross_entropy(client(images[batch]), data.train.labels[batch]).backward()
                    updates.step()
            found.append((len(own) / len(data.train), client.state_dict()))
        floating = [name for name, value in network.state_dict().items() if torch.is_floating_point(value)]
        mean_of = {name: sum(share * state[name].double() for share, state in found).float() for name in floating}
        network.load_state_dict(network.state_dict() | mean_of)
    return network.state_dict()


@pytest.mark.parametrize(
    ("network", "optimiser"), [("mlp", "sgd"), ("mlp", "adamw"), ("resnet32", "sgd")], ids=lambda value: value
)
def test_the_mean_of_two_clients_is_that_of_a_loop_by_hand(tmp_path, monkeypatch, network, optimiser):
    monkeypatch.setattr(
        networks.mlp.MLP.__init__, "__kwdefaults__", {"shape": (1, 8, 8), "hidden": (16,), "dropout": 0.0}
    )
    spec = RunSpec(
        network=network, head="plain", clients=2, concentration=0.5, local_epochs=2, epochs=2, batch_size=16,
        max_train=40, max_test=10, learning_rate=0.01, schedule="constant", optimiser=optimiser, precision="32-true",
    )  # fmt: skip

    def build(parameters):
        if optimiser == "adamw":
            return torch.optim.AdamW(parameters, lr=0.01, weight_decay=5e-4)
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4)

    found, expected = load_file(run(tmp_path, spec) / "weights.safetensors"), hand_written(spec, build)
    compared = {name for name, value in found.items() if value.is_floating_point() and "extra_state" not in name}
    assert any("running_var" in name for name in compared) == (network == "resnet32")
    for name in compared:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


class Recorded(nn.Module):
    """A network whose "training" adds the number of images of the batch to all that it has."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0]))
        self.frozen = nn.Parameter(torch.tensor([0.1]), requires_grad=False)
        self.register_buffer("running_mean", torch.tensor([-0.0]))
        self.register_buffer("count", torch.tensor(0))


class FakeStep:
    position = 0

    def __init__(self, network, optimiser):
        self.network, self.optimiser = network, optimiser
        self.seen = []

    def at(self, epoch, position, rate):
        self.position = position

    def __call__(self, indices):
        self.seen.append((self.network.weight.item(), bool(self.optimiser.state)))
        self.optimiser.state[self.network.weight]["momentum_buffer"] = torch.ones(1)
        with torch.no_grad():
            self.network.weight += len(indices)
            self.network.running_mean += 1
            self.network.count += 1
        return torch.tensor(0.0)


def test_every_client_starts_from_the_common_weights_without_the_state_of_the_optimiser(monkeypatch):
    own = [torch.arange(6), torch.arange(6, 8)]
    monkeypatch.setattr(rounds, "dirichlet_clients", lambda *_: own)
    order = Rounds(RunSpec(clients=2, batch_size=4), torch.zeros(8, dtype=torch.int64))
    network = Recorded()
    pointers = [value.data_ptr() for value in shared_values(network)]
    optimiser = torch.optim.SGD([network.weight], lr=0.1, momentum=0.9)
    fake = FakeStep(network, optimiser)
    federated = FederatedStep(fake, order, optimiser)
    for position, batch in enumerate(torch.split(torch.arange(8), order.sizes().long().tolist())):
        federated.at(0, position, 0.1)
        federated(batch)
    assert fake.seen == [(1, False), (5, True), (1, False)]  # the state is left alone inside a turn
    assert not optimiser.state
    # 6 of 8 images made 1 + 6 of the weight, 2 of 8 made 1 + 2
    assert network.weight.item() == pytest.approx(0.75 * 7 + 0.25 * 3)
    assert network.running_mean.item() == 0.75 * 2 + 0.25 * 1
    assert network.frozen.item() == torch.tensor(0.1).item()
    assert network.count.item() == 3
    assert [value.data_ptr() for value in shared_values(network)] == pointers


def test_losses_are_weighed_by_images(finished):
    order = Rounds(SPEC, prepare(SPEC, None).train.labels)
    assert len(set(order.sizes().tolist())) > 1
    told = json.loads((finished / "result.json").read_text())
    assert told["metrics"]["num_train"] == 150
    assert rows(finished)[-1]["train_loss"] < rows(finished)[0]["train_loss"]


def stop_at(monkeypatch, number, action):
    call, steps = step.Step.__call__, iter(range(10_000))
    monkeypatch.setattr(
        step.Step, "__call__", lambda self, indices: (next(steps) == number and action(), call(self, indices))[1]
    )


@pytest.mark.parametrize("at", [0, 5, "last of the first round"])
def test_a_signal_waits_for_the_end_of_the_round_and_no_bit_is_lost(finished, tmp_path, monkeypatch, capsys, at):
    steps = Rounds(SPEC, prepare(SPEC, None).train.labels).steps
    with monkeypatch.context() as patch:
        stop_at(patch, steps - 1 if isinstance(at, str) else at, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as caught:
            train(SPEC, runs=tmp_path, execution=CPU)
    assert caught.value.code == 143
    assert f"stopped by a signal after epoch 1/3, step {steps}/{steps}" in capsys.readouterr().err
    folder = run(tmp_path)
    assert weights(folder) == weights(finished)
    assert rows(folder) == rows(finished)


def test_resume_points_amid_a_round_are_left_out(tmp_path, monkeypatch):
    saved, save = [], trainer.save_point
    monkeypatch.setattr(trainer, "save_point", lambda folder, point: saved.append(point) or save(folder, point))
    steps = Rounds(SPEC, prepare(SPEC, None).train.labels).steps
    run(tmp_path, execution=Execution(device="cpu", extra=options(checkpoint_steps=1)))
    assert [(point.state["epoch"], point.state["step"]) for point in saved] == [(epoch, steps) for epoch in range(3)]
    assert not any(name.startswith("optimiser.") for point in saved for name in point.tensors)


KILLED = """
    import os, signal, torch
    from maxsep.lab.engine import step, train
    from maxsep.lab.spec import Execution, RunSpec, options

    call, steps = step.Step.__call__, iter(range(10_000))

    def killing(self, indices):
        if next(steps) == {number}:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(self, indices)

    step.Step.__call__ = killing
    torch.set_num_threads({threads})  # sums of other threads round otherwise
    spec = RunSpec.from_dict({spec!r})
    execution = Execution(device="cpu", extra=options(checkpoint_steps=1))
    train(spec, runs={runs!r}, execution=execution, progress=False)
"""


def test_a_killed_run_goes_on_from_the_last_round_and_changes_no_bit(finished, tmp_path):
    steps = Rounds(SPEC, prepare(SPEC, None).train.labels).steps
    told = {"spec": SPEC.to_dict(), "runs": str(tmp_path), "threads": torch.get_num_threads()}
    program = KILLED.format(number=steps + steps // 2, **told)
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.load_point(tmp_path / SPEC.name / "resume").state["epoch"] == 0  # saved before its evaluation
    folder = run(tmp_path)
    assert json.loads((folder / "result.json").read_text())["resumed"] == 1
    assert rows(folder) == rows(finished)
    assert weights(folder) == weights(finished)


def test_more_clients_than_images_are_refused_before_there_is_a_folder(tmp_path):
    with pytest.raises(ValueError, match="10 training images cannot be shared by 11 clients"):
        run(tmp_path, SPEC.replace(clients=11, max_train=10))
    assert not list(tmp_path.iterdir())


def test_batches_of_many_sizes_are_not_captured(monkeypatch):
    monkeypatch.setattr(assemble, "CapturedStep", lambda step: "captured")
    few, usual = Rounds(SPEC, LABELS), Order(SPEC, LABELS)
    network = Recorded()
    optimiser = torch.optim.SGD([network.weight], lr=0.1)
    assert isinstance(assemble._around(FakeStep(network, optimiser), few, optimiser, captures=False), FederatedStep)
    assert assemble._around(FakeStep(network, optimiser), usual, optimiser, captures=True) == "captured"
