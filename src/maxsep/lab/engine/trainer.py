"""The training loop: epochs of steps, evaluation, resume points, and the record at the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from maxsep.analysis import angular_fisher_score
from maxsep.lab.data import Splits
from maxsep.lab.engine.calibration import calibrate
from maxsep.lab.engine.checkpoint import CheckpointError, load_point, save_point
from maxsep.lab.engine.cuda_graph import CapturedStep
from maxsep.lab.engine.evaluation import measure, predict
from maxsep.lab.engine.losses import Loss, reweight
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.engine.nonfinite import check_losses
from maxsep.lab.engine.observer import Observer
from maxsep.lab.engine.order import Order
from maxsep.lab.engine.progress import Progress
from maxsep.lab.engine.schedules import learning_rate
from maxsep.lab.engine.state import RandomStates, State, pack, unpack
from maxsep.lab.engine.step import Step
from maxsep.lab.engine.stop import StopRequest
from maxsep.lab.environment import hardware, versions
from maxsep.lab.run import SCHEMA, Run
from maxsep.lab.spec import Execution, RunSpec

_SAVING_SHARE = 50
"""After a save, this many times its duration is trained before the next one that is due at an epoch's end."""


@dataclass
class Trainer:
    """A run in progress. `assemble.assemble` builds it; `fit` carries it to its end or to a stop."""

    spec: RunSpec
    execution: Execution
    fabric: Any
    data: Splits
    order: Order
    mean: Tensor
    std: Tensor
    pipeline: Pipeline
    optimiser: Optimizer
    loss: Loss
    step: Step | CapturedStep
    random: RandomStates
    run: Run
    progress: Progress
    stop: StopRequest
    observer: Observer | None = None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        """Count the steps of an epoch (a short last batch is one of them) and start at the beginning."""
        self.steps = self.order.steps
        self.class_counts = self.data.train.class_counts
        # float64, so that the mean over an epoch adds no rounding of its own
        losses = torch.zeros(self.steps, dtype=torch.float64, device=self.fabric.device)
        self.state = State(losses, started=_now())
        self.checkpoint_steps = int(dict(self.execution.extra).get("checkpoint_steps", 0))
        self.facts = _conditions(self.execution) | versions() | hardware(self.fabric.device, self.fabric.world_size)
        self.facts["files"] = self.data.fingerprint
        # images that stay on the host cannot be part of a graph
        self.facts["cuda_graph"] = isinstance(self.step, CapturedStep)
        self.final: tuple[dict[str, Any], float] | None = None
        self._tick = self.clock()
        self._next_save = 0.0

    def resume(self) -> None:
        """Take up the newest good resume point, if there is one."""
        point = load_point(self.run.resume)
        if point is not None:
            self._check_files(point.state["facts"].get("files"))
            states = unpack(point, self.state, self.pipeline.network, self.optimiser)
            self.state.resumed += 1
            self._restore_random(states)
            self._compare(point.state["facts"])
        if self.fabric.is_global_zero:
            self.run.rewrite_history(self.state.history)
        done = self.state.epoch * self.steps + self.state.step
        self.progress.start(done, self.spec.epochs * self.steps)

    def fit(self) -> int:
        """Train to the end and write the result; give 0, or the signal that asked for a stop."""
        self._tick = self.clock()
        while self.state.epoch < self.spec.epochs:
            if signum := self._train_epoch():
                return signum
            self._end_epoch()
        if self.fabric.is_global_zero:
            self._finish()
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
            began = self.clock()
            self.step.at(state.epoch, position, learning_rate(spec, state.epoch, position, self.steps))
            state.losses[position].copy_(self.step(batches[position]))
            state.step = position + 1
            state.epoch_seconds += self.clock() - began
            self.progress.step()
            if signum := self._pause():
                return signum
        return 0

    def _pause(self) -> int:
        """Save if a resume point is due here; give the signal if the run shall stop."""
        state = self.state
        signum = self._agree(self.stop.signum) if self._may_stop() else 0
        done = state.epoch * self.steps + state.step
        due = self.checkpoint_steps > 0 and done % self.checkpoint_steps == 0
        if signum or due:
            self._save()
        if signum:
            place = f"epoch {state.epoch + 1}/{self.spec.epochs}, step {state.step}/{self.steps}"
            self.progress.note(f"stopped by a signal after {place}; run again to go on")
        return signum

    def _may_stop(self) -> bool:
        # processes must agree on a stop, and asking each other costs a wait: so only where an epoch ends
        return self.fabric.world_size == 1 or self.state.step == self.steps

    def _end_epoch(self) -> None:
        state, spec = self.state, self.spec
        epoch, last = state.epoch, state.epoch == spec.epochs - 1
        began = self.clock()
        rate = learning_rate(spec, epoch, 0, self.steps)
        losses = state.losses.cpu()  # the only wait for the device in an epoch
        state.epoch_seconds += self.clock() - began
        check_losses(spec, losses, epoch=epoch, rate=rate)
        row: dict[str, Any] = {
            "epoch": epoch,
            "learning_rate": rate,
            "train_loss": float((losses * self.order.sizes()).sum() / self.order.images),
            "seconds": state.epoch_seconds,
        }
        if (epoch % spec.evaluate_every == 0 or last) and self.fabric.is_global_zero:
            self.final = self._evaluate()
            row |= {key: self.final[0][key] for key in ("top1", "loss", "top5", "ece")}
        if self.observer is not None and self.fabric.is_global_zero:
            row |= self.observer(self.pipeline, epoch + 1, self.fabric.autocast())
        self.fabric.barrier()
        state.history.append(row)
        state.epoch, state.step, state.permutation, state.epoch_seconds = epoch + 1, 0, None, 0.0
        if self.fabric.is_global_zero:
            self.run.append(row)
        self.progress.epoch(row)
        if state.epoch % self.execution.checkpoint_every == 0 and not last and self._affordable():
            self._save()

    def _evaluate(self) -> tuple[dict[str, Any], float]:
        outputs = predict(self.pipeline, self.data.test, self.fabric.autocast())
        metrics = measure(outputs, self.loss, self.spec.softmax_scale)
        return metrics, angular_fisher_score(outputs.features, outputs.labels)

    def _affordable(self) -> bool:
        """Skip a resume point that is due if saving would take more than a fiftieth of the time.

        So a run of many short epochs loses no speed, and an interruption still costs fifty saves at most.
        """
        return bool(self._agree(int(self.clock() >= self._next_save)))

    def _save(self) -> None:
        state, began = self.state, self.clock()
        check_losses(
            self.spec,
            state.losses[: state.step].cpu(),
            epoch=state.epoch,
            rate=learning_rate(self.spec, state.epoch, 0, self.steps),
        )
        self._account()
        random = {name: self._gather(value) for name, value in self.random.get().items()}
        if self.fabric.is_global_zero:
            save_point(self.run.resume, pack(state, self.pipeline.network, self.optimiser, random, self.facts))
        self.fabric.barrier()
        ended = self.clock()
        self._next_save = ended + _SAVING_SHARE * (ended - began)

    def _finish(self) -> None:
        spec, state, network = self.spec, self.state, self.pipeline.network
        metrics, fisher = self.final or self._evaluate()
        evaluated = [row for row in state.history if "top1" in row]
        best = max(evaluated, key=lambda row: row["top1"])
        metrics = metrics | {
            "best_top1": best["top1"],
            "best_epoch": best["epoch"],
            "train_loss": state.history[-1]["train_loss"],
            "angular_fisher": fisher,
            "class_counts": self.class_counts,
            "num_train": len(self.data.train),
            "num_test": len(self.data.test),
            "parameters": sum(p.numel() for p in network.parameters()),
        }
        if self.data.fingerprint is not None:
            metrics["files"] = self.data.fingerprint
        self._account()
        result = {
            "schema": SCHEMA,
            "name": spec.name,
            "spec": spec.to_dict(),
            "metrics": metrics,
            "preprocessing": {
                "shape": list(self.data.train.shape),
                "mean": self.mean.tolist(),
                "std": self.std.tolist(),
                "classes": list(self.data.train.classes),
            },
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
            calibration, scale = self.data.calibration, spec.softmax_scale
            result["unknown"] = calibrate(network, self.mean, self.std, calibration, scale)
        self.run.finish(dict(network.state_dict()), state.history, result)

    def _account(self) -> None:
        now = self.clock()
        self.state.total_seconds += now - self._tick
        self._tick = now

    def _agree(self, signum: int) -> int:
        """Give the largest number that any process has."""
        if self.fabric.world_size == 1:
            return signum
        return int(self._gather(torch.tensor([signum])).max())

    def _gather(self, value: Tensor) -> Tensor:
        """Stack every process's tensor, one row each."""
        if self.fabric.world_size == 1:
            return value[None]
        value = value.to(self.fabric.device)
        rows = [torch.empty_like(value) for _ in range(self.fabric.world_size)]
        torch.distributed.all_gather(rows, value)
        return torch.stack(rows).cpu()

    def _restore_random(self, states: dict[str, Tensor]) -> None:
        rows = len(states["order"])
        # the order is common to all processes and devices; what else was drawn starts anew from the seed where it must
        if rows != self.fabric.world_size:
            self.random.order.set_state(states["order"][0])
            told = f"by {rows} processes and is taken up by {self.fabric.world_size}"
        elif not self.random.set({name: value[self.fabric.global_rank] for name, value in states.items()}):
            told = f"on another kind of device and is taken up on {self.fabric.device.type}"
        else:
            return
        self.progress.note(
            f"the resume point was written {told}: "
            "the weights are the same, the rest of the run will differ from an uninterrupted one"
        )

    def _check_files(self, files: str | None) -> None:
        """Refuse to go on with other pictures than those the run was begun with; old points say nothing of them."""
        if files is not None and files != self.data.fingerprint:
            raise CheckpointError(
                f"the resume point was made with other images of {self.spec.dataset}: files have been replaced, or "
                "changed in name or size. Delete the run's folder and train anew."
            )

    def _compare(self, facts: dict[str, Any]) -> None:
        now = self.facts
        changed = [f"{key} {facts[key]} -> {now[key]}" for key in now if key in facts and facts[key] != now[key]]
        if changed:
            self.progress.note(f"resumed under other conditions ({'; '.join(changed)}): not bit-identical to one run")


def _conditions(execution: Execution) -> dict[str, Any]:
    """Give the settings that change the last bits; where resume points lie is not one of them."""
    told = {name: getattr(execution, name) for name in ("compile", "channels_last", "cuda_graph")}
    extra = dict(execution.extra)
    return told | {name: extra.get(name) for name in ("compile_mode", "compile_options")}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
