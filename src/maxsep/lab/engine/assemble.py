"""From a spec, data and Fabric to a trainer that is ready to run."""

from __future__ import annotations

from typing import Any

import torch

from maxsep.lab.data import Splits, augmentation, normalisation
from maxsep.lab.engine.augmenting import CompiledAugmentation
from maxsep.lab.engine.cuda_graph import CapturedStep
from maxsep.lab.engine.losses import Loss, build_loss
from maxsep.lab.engine.model import Pipeline, build_model
from maxsep.lab.engine.optimisers import build_optimiser
from maxsep.lab.engine.order import Order
from maxsep.lab.engine.progress import Progress
from maxsep.lab.engine.seeds import derive
from maxsep.lab.engine.stages import rest, take_over
from maxsep.lab.engine.state import RandomStates
from maxsep.lab.engine.step import Augmentation, Step
from maxsep.lab.engine.stop import StopRequest
from maxsep.lab.engine.trainer import Trainer
from maxsep.lab.environment import fits
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

_VARIANTS = 128


def assemble(
    fabric: Any,
    spec: RunSpec,
    execution: Execution,
    data: Splits,
    run: Run,
    progress: Progress,
    stop: StopRequest,
) -> Trainer:
    """Build network, optimiser, step and generators on Fabric's device, and change torch's global random state."""
    mean, std = normalisation(spec.normalisation, data)
    data = data.to(fabric.device, images=fits(data.bytes, fabric.device))
    # a graph cannot hold what the host does in every step
    captures = execution.cuda_graph and data.train.images.device.type == "cuda"
    network = build_model(spec, data.train.shape, data.train.num_classes)
    take_over(spec, network, run.folder.parent)
    if execution.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pipeline = Pipeline(network, mean, std, channels_last=execution.channels_last).to(fabric.device)
    rest(spec, pipeline)
    optimiser = build_optimiser(spec, network, capturable=captures)
    if execution.compile:
        _compile(pipeline, spec, execution, fabric.world_size)
    model, wrapped = fabric.setup(pipeline, optimiser)
    random = _generators(spec, fabric)
    loss = _loss(spec, data, fabric.device)
    step = Step(
        spec=spec,
        fabric=fabric,
        model=model,
        network=network,
        optimiser=wrapped,
        loss=loss,
        images=data.train,
        augment=_augmentation(spec, execution, fabric),
        generator=random.augmentation,
        mixing=random.mixup,
    )
    return Trainer(
        spec=spec,
        execution=execution,
        fabric=fabric,
        data=data,
        order=Order(spec, data.train.labels),
        mean=mean,
        std=std,
        pipeline=pipeline,
        optimiser=optimiser,
        loss=loss,
        step=CapturedStep(step) if captures else step,
        random=random,
        run=run,
        progress=progress,
        stop=stop,
    )


def _loss(spec: RunSpec, data: Splits, device: torch.device) -> Loss:
    loss = build_loss(spec, data.train.class_counts)
    return loss.to(device) if isinstance(loss, torch.nn.Module) else loss


def _augmentation(spec: RunSpec, execution: Execution, fabric: Any) -> Augmentation:
    augment = augmentation(spec.augmentation)
    # on a CPU the network takes all the time, and compiling would take more
    if not execution.compile or fabric.device.type != "cuda":
        return augment
    return CompiledAugmentation(augment, spec.batch_size // fabric.world_size)


def _compile(pipeline: Pipeline, spec: RunSpec, execution: Execution, world_size: int) -> None:
    # every network and batch size of a process is one more variant of the same code; beyond the limit
    # torch.compile would fall back to the uncompiled code, with no more than a warning
    limit = getattr(torch._dynamo.config, "recompile_limit", 0)
    torch._dynamo.config.recompile_limit = max(limit, _VARIANTS)
    extra = dict(execution.extra)
    pipeline.compile_backbone(
        spec.batch_size // world_size, extra.get("compile_mode"), extra.get("compile_options", "")
    )


def _generators(spec: RunSpec, fabric: Any) -> RandomStates:
    order = torch.Generator().manual_seed(derive(spec.seed, "order"))
    rank = fabric.global_rank
    augmentation = torch.Generator(fabric.device).manual_seed(derive(spec.seed, "augmentation", rank))
    mixup = torch.Generator(fabric.device).manual_seed(derive(spec.seed, "mixup", rank))
    torch.manual_seed(derive(spec.seed, "dropout", rank))
    return RandomStates(order, augmentation, fabric.device, mixup)
