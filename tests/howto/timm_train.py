"""A stand-in for timm's train.py, which its package lacks: the page's options, timm's parts, its checkpoint."""

import argparse
from pathlib import Path

import torch
from timm.data import create_dataset, create_loader
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.utils import CheckpointSaver, ModelEmaV3

parser = argparse.ArgumentParser()
for option, kind in {"data-dir": str, "model": str, "output": str, "experiment": str, "device": str}.items():
    parser.add_argument(f"--{option}", type=kind, required=True)
for option, kind in {"num-classes": int, "batch-size": int, "epochs": int, "workers": int, "lr": float}.items():
    parser.add_argument(f"--{option}", type=kind, required=True)
parser.add_argument("--warmup-epochs", type=int)
parser.add_argument("--cooldown-epochs", type=int)
parser.add_argument("--input-size", type=int, nargs=3)
parser.add_argument("--model-ema", action="store_true")


def main():
    args = parser.parse_args()
    model = create_model(args.model, num_classes=args.num_classes).to(args.device)
    optimiser = create_optimizer_v2(model, opt="sgd", lr=args.lr, momentum=0.9)
    average = ModelEmaV3(model)
    folder = Path(args.output, args.experiment)
    folder.mkdir(parents=True)
    places = {"checkpoint_dir": str(folder), "recovery_dir": str(folder)}
    saver = CheckpointSaver(model, optimiser, args=args, model_ema=average, max_history=2, **places)
    pictures = create_dataset("", root=args.data_dir, split="train", is_training=True, batch_size=args.batch_size)
    loader = create_loader(
        pictures, tuple(args.input_size), args.batch_size, is_training=True, num_workers=args.workers,
        use_prefetcher=False, device=torch.device(args.device),
    )  # fmt: skip
    for epoch in range(args.epochs):
        for x, target in loader:
            loss = torch.nn.functional.cross_entropy(model(x.to(args.device)), target.to(args.device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            average.update(model)
        saver.save_checkpoint(epoch, metric=-loss.item())


if __name__ == "__main__":
    main()
