"""What `attach`, `fold` and `grow` make of library models whose parameters depend on their names alone."""

import copy

import pytest
import timm
import torch
import transformers as hf
from torchvision.models import mobilenet_v3_small
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer

import maxsep
from maxsep.surgery import find_heads

CLASSES = 7
TIMM_VIT = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 10}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_labels": 3}
PICTURE = SMALL | {"image_size": 32, "patch_size": 16}
TEXT = SMALL | {"vocab_size": 30}
MODELS = {
    "torchvision resnet": lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10),
    "torchvision mobilenet": lambda: mobilenet_v3_small(num_classes=10),
    "torchvision vit": lambda: VisionTransformer(32, 16, 1, 2, 16, 16, num_classes=10),
    "timm resnet": lambda: timm.create_model("resnet10t", num_classes=10),
    "timm vit": lambda: timm.create_model("vit_tiny_patch16_224", **TIMM_VIT),
    "timm deit, distilled": lambda: timm.create_model("deit_tiny_distilled_patch16_224", **TIMM_VIT),
    "transformers vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**PICTURE)),
    "transformers deit, distilled": lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**PICTURE)),
    "transformers bert": lambda: hf.BertForSequenceClassification(hf.BertConfig(**TEXT)),
    "transformers roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**TEXT)),
    "transformers llama": lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**TEXT, pad_token_id=0)),
    "plain layers": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 16), torch.nn.Linear(16, 5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_library_models(golden, name):
    torch.manual_seed(0)
    model = golden.fill(MODELS[name]().double()).eval()
    is_text = name.endswith(("bert", "roberta", "llama"))
    x = (torch.arange(24).reshape(4, 6) * 5 % 28 + 2) if is_text else golden.draw("images", 4, 3, 32, 32)
    keeping = maxsep.attach(copy.deepcopy(model), radius=0.5, keep_weights=True)
    fresh = maxsep.attach(copy.deepcopy(model), CLASSES, radius=0.1)
    for path, head in find_heads(fresh):
        golden.fill(torch.nn.ModuleDict({path.replace(".", " "): head}))
    changed = {"before": model, "keep_weights": keeping, "fresh": fresh}
    changed |= {"folded": maxsep.fold(fresh), "kept, folded": maxsep.fold(keeping)}
    changed["grown"] = maxsep.grow(copy.deepcopy(keeping), 2)
    with torch.no_grad():
        outputs = {key: part(x) for key, part in changed.items()}
    entry = {key: golden.summary(getattr(output, "logits", output)) for key, output in outputs.items()}
    entry["heads"] = [f"{path}: {head.in_features} to {head.num_classes}" for path, head in find_heads(fresh)]
    entry["state"] = {path: sorted(head.state_dict()) for path, head in find_heads(fresh)}
    golden("surgery", name, entry, 1e-9)


@pytest.mark.parametrize(("name", "options"), [("SGD", {"momentum": 0.9}), ("Adam", {})])
def test_growth_takes_the_optimiser_along(golden, name, options):
    head = golden.fill(maxsep.MaxSeparationHead(6, 4, 0.5).double())
    x, y = golden.draw("features", 8, 6), torch.arange(8) % 4
    optimiser = getattr(torch.optim, name)(head.parameters(), lr=0.1, **options)
    for grows in (True, False):
        for _ in range(3):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(head(x), y).backward()
            optimiser.step()
        head = maxsep.grow(head, 2, optimiser=optimiser) if grows else head
    golden("surgery", f"growth with {name}", golden.summary(head(x)), 1e-9)
