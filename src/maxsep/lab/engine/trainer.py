"""The training loop: epochs of steps, evaluation, resume points, the result; with its signals."""

from __future__ import annotations

import signal
import statistics
import threading
import time
import zlib
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor

from maxsep.analysis import angular_fisher_score
from maxsep.lab.data import Splits, augmentation
from maxsep.lab.engine.checkpoint import CheckpointError, Generators, State, load_point, pack, save_point, unpack
from maxsep.lab.engine.evaluate import Observer, Outputs, calibrate, measure, predict
from maxsep.lab.engine.losses import build_loss, reweight
from maxsep.lab.engine.model import Pipeline, build_model, derive, load_start, statistics_of
from maxsep.lab.engine.optim import build_optimiser, learning_rate
from maxsep.lab.engine.processes import Processes, whole
from maxsep.lab.engine.progress import Board, Progress
from maxsep.lab.engine.step import Augmentation, CapturedStep, CompiledAugmentation, Order, Step, check_losses
from maxsep.lab.environment import command_line, fits, hardware, versions
from maxsep.lab.run import SCHEMA, Run
from maxsep.lab.spec import Execution, RunSpec

SAVING_SHARE = 50
"""After a save, this many times its duration is trained before the next one that is due at an epoch's end."""
_VARIANTS = 128
"""Every network and batch size of a process is one more variant of the same compiled code."""


class DeadlineError(RuntimeError):
    """The time for a run is over; its state was saved."""


class StopRequest:
    """While entered, remember the first SIGTERM or SIGINT as `signum`, so that the step ends and the state is saved.

    A second signal of the same kind acts as it did before. Outside the main thread, where Python handles no signals, it
    never asks for a stop. No signal is lost: if the block ends with an error, SystemExit replaces the error. From
    `deadline` on, in seconds of `time.monotonic`, SIGALRM stands for a stop without a signal.
    """

    def __init__(self, deadline: float | None = None) -> None:
        self._signum, self._deadline = 0, deadline
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._signum and isinstance(error, Exception):
            raise SystemExit(128 + self._signum) from error

    @property
    def signum(self) -> int:
        """The signal that asked for a stop; 0 if none did."""
        is_late = self._deadline is not None and time.monotonic() >= self._deadline
        return self._signum or (int(signal.SIGALRM) if is_late else 0)

    def _remember(self, signum: int, frame: FrameType | None) -> None:
        self._signum = signum
        signal.signal(signum, self._before[signum])


class Trainer:
    """A run in progress, with an `execution` resolved for the device; building it changes torch's random state."""

    def __init__(
        self,
        fabric: Any,
        spec: RunSpec,
        execution: Execution,
        data: Splits,
        run: Run,
        progress: Progress,
        stop: StopRequest,
    ) -> None:
        self.fabric, self.spec, self.execution, self.run = fabric, spec, execution, run
        self.processes = Processes(fabric)
        self.progress, self.stop = progress, stop
        self.observer: Observer | None = None
        self.board: Board | None = None
        self.mean, self.std = statistics_of(spec, data)
        self.data = data.to(fabric.device, images=fits(data.bytes, fabric.device))
        self.class_counts = self.data.train.class_counts
        self.order = Order(spec, self.data.train.labels)
        self.steps = self.order.steps
        self._build()
        # float64, so that the mean over an epoch adds no rounding of its own
        losses = torch.zeros(self.steps, dtype=torch.float64, device=fabric.device)
        self.state = State(losses, started=_now())
        settings = {name: getattr(execution, name) for name in ("compile", "channels_last")}
        settings["cuda_graph"] = isinstance(self.step, CapturedStep)
        self.facts = settings | versions() | hardware(fabric.device, fabric.world_size) | {"files": data.fingerprint}
        self.facts["run"] = spec.digest
        self.final: tuple[dict[str, Any], float] | None = None
        self.began = self._tick = time.perf_counter()
        self._next_save = 0.0

    def _build(self) -> None:
        spec, fabric, train = self.spec, self.fabric, self.data.train
        network = build_model(spec, train.shape, train.num_classes, self.class_counts)
        load_start(spec, network, train.shape, self.run.folder.parent, self.execution.weights)
        channels_last = bool(self.execution.channels_last)
        if channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        freeze = spec.backbone == "frozen"
        pipeline = Pipeline(network, self.mean, self.std, channels_last=channels_last, freeze_backbone=freeze)
        self.pipeline = pipeline.to(fabric.device)
        # a graph cannot contain the copies of images from the host
        captures = bool(self.execution.cuda_graph) and train.images.device.type == "cuda"
        augment: Augmentation = augmentation(spec.augmentation)
        if self.execution.compile:
            # beyond the limit torch.compile would fall back to eager code, with no more than a warning
            limit = getattr(torch._dynamo.config, "recompile_limit", 0)
            torch._dynamo.config.recompile_limit = max(limit, _VARIANTS)
            batch_size = spec.batch_size // fabric.world_size // self.execution.accumulate
            self.pipeline.compile_backbone(batch_size)
            if fabric.device.type == "cuda":  # on a CPU the network takes all the time
                augment = CompiledAugmentation(augmentation(spec.augmentation), batch_size)
        model = fabric.setup_module(self.pipeline)
        self.optimiser = build_optimiser(spec, network, capturable=captures)  # of weights that may be sharded now
        optimiser = fabric.setup_optimizers(self.optimiser)
        rank, device = fabric.global_rank, fabric.device
        self.random = Generators(
            torch.Generator().manual_seed(derive(spec.seed, "order")),
            torch.Generator(device).manual_seed(derive(spec.seed, "augmentation", rank)),
            torch.Generator(device).manual_seed(derive(spec.seed, "mixup", rank)),
        )
        torch.manual_seed(derive(spec.seed, "dropout", rank))
        self.loss = build_loss(spec, self.class_counts).to(device)
        how = (self.random.augmentation, self.random.mixup), self.execution.accumulate
        step = Step(spec, fabric, model, network, optimiser, self.loss, train, augment, *how)
        self.step = CapturedStep(step) if captures else step

    def resume(self) -> None:
        """Restore the newest good resume point, if there is one."""
        point = load_point(self.run.resume)
        if point is not None:
            if point.state["facts"].get("run") != self.spec.digest:
                raise CheckpointError(f"{self.run.resume} is of another run. Delete it to start again.")
            files = point.state["facts"].get("files")
            if files is not None and files != self.data.fingerprint:
                raise CheckpointError(
                    f"the images of {self.spec.dataset} have changed in name, size or label since the resume point. "
                    f"Delete {self.run.folder} to train anew."
                )
            states = unpack(point, self.state, self.pipeline.network, self.optimiser)
            self.state.resumed += 1
            self._restore_random(states)
            self._compare(point.state["facts"])
        if self.fabric.is_global_zero:
            self.run.rewrite_history(self.state.history)
            if self.execution.tensorboard:
                self.board = Board(self.run.folder / "tensorboard", self.state.history)
        done = self.state.epoch * self.steps + self.state.step
        self.processes.check_same("resume points", done)
        self.processes.check_same("training labels", zlib.crc32(self.data.train.labels.cpu().numpy().tobytes()))
        self.progress.start(done, self.spec.trained_epochs * self.steps)

    def fit(self) -> int:
        """Train to the end and write the result; return 0, or the signal that asked for a stop."""
        self._tick = time.perf_counter()
        while self.state.epoch < self.spec.trained_epochs:
            if signum := self._train_epoch():
                return signum
            self._end_epoch()
        weights = whole(self.pipeline.network.state_dict())
        if self.fabric.is_global_zero:
            self._finish(weights)
        self.fabric.barrier()
        return 0

    def _train_epoch(self) -> int:
        state, spec = self.state, self.spec
        reweight(self.loss, spec, self.class_counts, state.epoch)
        if state.permutation is None:
            state.permutation = self.order.draw(state.epoch, self.random.order)
        sizes = self.order.sizes().long().tolist()
        batches = torch.split(state.permutation.to(self.data.train.images.device), sizes)
        self.pipeline.train()
        for position in range(state.step, self.steps):
            began = time.perf_counter()
            self.step.at(state.epoch, position, learning_rate(spec, state.epoch, position, self.steps))
            state.losses[position].copy_(self.step(batches[position]))
            state.step = position + 1
            state.epoch_seconds += time.perf_counter() - began
            self.progress.step()
            if signum := self._pause():
                return signum
        return 0

    def _pause(self) -> int:
        """Save if a resume point is due after this step; return the signal if the run is to stop."""
        state = self.state
        # processes must agree on a stop, and asking each other costs a wait: so only at the end of an epoch
        may_stop = self.fabric.world_size == 1 or state.step == self.steps
        signum = self.processes.agree(self.stop.signum) if may_stop else 0
        every, done = self.execution.checkpoint_steps, state.epoch * self.steps + state.step
        if signum or (every and done % every == 0):
            self._save()
        if signum:
            position = f"epoch {state.epoch + 1}/{self.spec.epochs}, step {state.step}/{self.steps}"
            self.progress.note(f"stopped after {position}; run again to resume")
        return signum

    def _end_epoch(self) -> None:
        state, spec = self.state, self.spec
        epoch, last = state.epoch, state.epoch == spec.trained_epochs - 1
        began = time.perf_counter()
        rate = learning_rate(spec, epoch, 0, self.steps)
        losses = state.losses.cpu()  # the only synchronisation with the device in an epoch
        state.epoch_seconds += time.perf_counter() - began
        check_losses(spec, losses, epoch=epoch, rate=rate)
        row: dict[str, Any] = {
            "epoch": epoch,
            "learning_rate": rate,
            "train_loss": float((losses * self.order.sizes()).sum() / self.order.images),
            "seconds": state.epoch_seconds,
        }
        due = last or (spec.evaluate_every > 0 and epoch % spec.evaluate_every == 0)
        outputs = predict(self.pipeline, self.data.test, self.fabric.autocast(), self.processes) if due else None
        if self.fabric.is_global_zero:
            if outputs is not None:
                self.final = self._measure(outputs)
                row |= {key: self.final[0][key] for key in ("top1", "balanced", "loss", "top5", "ece")}
            if self.observer is not None:
                row |= self.observer(self.pipeline, epoch + 1, self.fabric.autocast())
            self.run.append(row)
            if self.board is not None:
                self.board.add(row)
        self.fabric.barrier()
        state.history.append(row)
        state.epoch, state.step, state.permutation, state.epoch_seconds = epoch + 1, 0, None, 0.0
        self.progress.epoch(row)
        if state.epoch % self.execution.checkpoint_every == 0 and not last and self._is_affordable():
            self._save()

    def _measure(self, outputs: Outputs) -> tuple[dict[str, Any], float]:
        metrics = measure(outputs, self.loss, self.spec.softmax_scale)
        return metrics, angular_fisher_score(outputs.features, outputs.labels)

    def _is_affordable(self) -> bool:
        """Whether saving now takes less than a fiftieth of the time: epochs may be shorter than a save."""
        return bool(self.processes.agree(int(time.perf_counter() >= self._next_save)))

    def _save(self) -> None:
        state, began = self.state, time.perf_counter()
        rate = learning_rate(self.spec, state.epoch, 0, self.steps)
        check_losses(self.spec, state.losses[: state.step].cpu(), epoch=state.epoch, rate=rate)
        self._count_seconds()
        random = {name: self.processes.gather(value) for name, value in self.random.get().items()}
        point = pack(state, self.pipeline.network, self.optimiser, random, self.facts)
        if self.fabric.is_global_zero:
            save_point(self.run.resume, point)
        self.fabric.barrier()
        ended = time.perf_counter()
        self._next_save = ended + SAVING_SHARE * (ended - began)

    def _finish(self, weights: dict[str, Tensor]) -> None:
        spec, state, network, train = self.spec, self.state, self.pipeline.network, self.data.train
        metrics, fisher = self.final or ({}, 0.0)  # the last epoch is evaluated
        best = max((row for row in state.history if "top1" in row), key=lambda row: row["top1"])
        metrics = metrics | {
            "best_top1": best["top1"],
            "best_epoch": best["epoch"],
            "train_loss": state.history[-1]["train_loss"],
            "angular_fisher": fisher,
            "class_counts": self.class_counts,
            "num_train": len(train),
            "num_test": len(self.data.test),
            "parameters": sum(p.numel() for p in network.parameters()),
        }
        if self.data.fingerprint is not None:
            metrics["files"] = self.data.fingerprint
        self._count_seconds()
        result = {
            "schema": SCHEMA,
            "name": spec.name,
            "spec": spec.to_dict(),
            "metrics": metrics,
            "preprocessing": {
                "shape": list(train.shape),
                "mean": self.mean.tolist(),
                "std": self.std.tolist(),
                "classes": list(train.classes),
            },
            "command": command_line(),
            "execution": self.execution.to_dict(),
            "versions": versions(),
            "hardware": hardware(self.fabric.device, self.fabric.world_size),
            "seconds": state.total_seconds,
            # the median: the first epoch compiles and captures
            "images_per_second": self.order.images / statistics.median(row["seconds"] for row in state.history),
            "started": state.started,
            "finished": _now(),
            "resumed": state.resumed,
        }
        if self.data.calibration is not None:
            if self.execution.sharded:
                network = build_model(spec, train.shape, train.num_classes, self.class_counts)
                network.load_state_dict(weights)
            network, scale = network.to(self.fabric.device), spec.softmax_scale
            result["unknown"] = calibrate(network, self.mean, self.std, self.data.calibration, scale)
        if not state.resumed:  # with the time around training, for estimates
            result["wall_seconds"] = time.perf_counter() - self.began
        self.run.finish(weights, state.history, result)

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.state.total_seconds += now - self._tick
        self._tick = now

    def _restore_random(self, states: dict[str, Tensor]) -> None:
        rows = len(states["order"])
        # the order is common to all processes and devices; other generators start anew from the seed where they must
        if rows != self.fabric.world_size:
            self.random.order.set_state(states["order"][0])
            change = f"{rows} processes, and {self.fabric.world_size} go on"
        # copies: torch reads states by words, and a row of a file may begin between two
        elif not self.random.set({name: value[self.processes.rank].clone() for name, value in states.items()}):
            change = f"another kind of device than {self.fabric.device.type}"
        else:
            return
        self.progress.note(f"the resume point was written by {change}: the result will differ from an unbroken run's")

    def _compare(self, facts: dict[str, Any]) -> None:
        now = self.facts
        changed = [f"{key} {facts[key]} -> {now[key]}" for key in now if key in facts and facts[key] != now[key]]
        if changed:
            self.progress.note(f"resumed under other conditions ({'; '.join(changed)}): not bit-identical to one run")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
