"""transformers classifiers from tiny random configurations: logits, labels, and a way to and from a checkpoint."""

import copy
import pickle

import pytest
import torch
import transformers as hf
from small_models import refused
from torch import nn

import maxsep
from maxsep.heads import CosineHead
from maxsep.surgery import find_heads

CLASSES = 5
TEXT = {"vocab_size": 30, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SQUARE = {"image_size": 32, "patch_size": 16}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 8, 16]}

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


def vit(**options) -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(**VIT, **SQUARE, **{"num_labels": 3} | options))


def bert(**options) -> nn.Module:
    return hf.BertForSequenceClassification(hf.BertConfig(**TEXT, **{"num_labels": 3} | options))


def deit() -> nn.Module:
    return hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**VIT, **SQUARE, num_labels=3))


def resnet() -> nn.Module:
    return hf.ResNetForImageClassification(hf.ResNetConfig(embedding_size=8, layer_type="basic", **STAGES))


def swin() -> nn.Module:
    config = hf.SwinConfig(image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4)
    return hf.SwinForImageClassification(config)


def distilbert() -> nn.Module:
    config = hf.DistilBertConfig(vocab_size=30, dim=16, hidden_dim=16, n_layers=1, n_heads=2, num_labels=3)
    return hf.DistilBertForSequenceClassification(config)


def roberta() -> nn.Module:
    return hf.RobertaForSequenceClassification(hf.RobertaConfig(**TEXT, num_labels=3))


def llama() -> nn.Module:
    return hf.LlamaForSequenceClassification(hf.LlamaConfig(**TEXT, num_labels=3, pad_token_id=0))


IMAGE = {
    "vit": (vit, ["classifier"]),
    "deit": (deit, ["cls_classifier", "distillation_classifier"]),
    "resnet": (resnet, ["classifier.1"]),
    "convnext": (
        lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(**STAGES)),
        ["classifier"],
    ),
    "swin": (swin, ["classifier"]),
}
WORDS = {
    "bert": (bert, ["classifier"]),
    "distilbert": (distilbert, ["classifier"]),
    "roberta": (roberta, ["classifier.out_proj"]),
    "llama": (llama, ["score"]),
}


def logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).logits


def words() -> torch.Tensor:
    return torch.randint(2, 30, (4, 6))


@pytest.mark.parametrize("family", [*IMAGE, *WORDS])
def test_family(family, exercise):
    torch.manual_seed(0)
    build, paths = (IMAGE | WORDS)[family]
    model = build()
    has_bias = family != "llama"
    maxsep.attach(model, CLASSES)
    assert [path for path, _ in find_heads(model)] == paths
    assert all((head.bias is not None) == has_bias for _, head in find_heads(model))
    assert model.config.num_labels == model.num_labels == CLASSES
    assert model.config.id2label == {index: f"LABEL_{index}" for index in range(CLASSES)}
    assert model.config.label2id == {f"LABEL_{index}": index for index in range(CLASSES)}
    exercise(model, torch.randn(4, 3, 32, 32) if family in IMAGE else words(), CLASSES, logits)


def test_loss_of_the_model_itself_follows():
    model = maxsep.attach(bert(), CLASSES)
    labels = torch.tensor([0, 4, 4, 1])
    output = model(words(), labels=labels)
    expected = nn.functional.cross_entropy(output.logits, labels)
    assert torch.isclose(output.loss, expected)


def test_names_of_the_labels_are_kept_and_extended():
    names = {0: "cat", 1: "dog", 2: "owl"}
    model = bert(id2label=names, label2id={name: index for index, name in names.items()})
    maxsep.attach(model)
    assert model.config.id2label == names
    maxsep.grow(model, 2)
    assert model.num_labels == model.config.num_labels == 5
    assert model.config.id2label == names | {3: "LABEL_3", 4: "LABEL_4"}
    assert model.config.label2id == {"cat": 0, "dog": 1, "owl": 2, "LABEL_3": 3, "LABEL_4": 4}
    assert model(words()).logits.shape == (4, 5)


def test_folded_model_goes_through_save_pretrained_and_training_goes_on(tmp_path):
    torch.manual_seed(0)
    model = maxsep.attach(vit(), CLASSES, radius=0.5).eval()
    x = torch.randn(4, 3, 32, 32)
    maxsep.fold(model).save_pretrained(tmp_path / "hub")
    assert b"maxsep" not in pickle.dumps(maxsep.fold(model))
    again = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "hub").eval()
    assert type(again.classifier) is nn.Linear
    assert again.config.num_labels == CLASSES
    torch.testing.assert_close(again(x).logits, model(x).logits, rtol=0, atol=1e-5)

    maxsep.attach(again, radius=0.5, keep_weights=True)
    torch.testing.assert_close(again.classifier.weight, model.classifier.weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(again(x).logits, model(x).logits, rtol=0, atol=1e-5)


def test_an_attached_model_is_saved_folded_and_goes_on_training(tmp_path):
    torch.manual_seed(0)
    model = maxsep.attach(vit(), CLASSES, radius=0.5, class_order=[4, 2, 0, 1, 3]).eval()
    x = torch.randn(4, 3, 32, 32)
    for number, copied in enumerate((model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)))):
        folder = tmp_path / str(number)
        copied.save_pretrained(folder)
        again = hf.AutoModelForImageClassification.from_pretrained(folder, ignore_mismatched_sizes=True).eval()
        assert type(again.classifier) is nn.Linear
        torch.testing.assert_close(again(x).logits, model(x).logits, rtol=0, atol=1e-6)
    assert find_heads(model)
    expected = model.state_dict()
    model.load_state_dict(again.state_dict())  # as Trainer does when it resumes
    torch.testing.assert_close(model.state_dict(), expected)
    given = {name: 2 * value if name.startswith("classifier.") else value for name, value in expected.items()}
    given["classifier._extra_state"] = expected["classifier._extra_state"]
    given["classifier.class_order"] = expected["classifier.class_order"]
    model.save_pretrained(tmp_path / "given", state_dict=given)
    double = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "given").eval()
    torch.testing.assert_close(double.classifier.weight, 2 * again.classifier.weight)


def test_a_folded_or_changed_model_is_saved_as_it_is(tmp_path):
    model = maxsep.attach(vit(), CLASSES)
    model.classifier = nn.Linear(16, CLASSES)
    model.save_pretrained(tmp_path / "plain")
    again = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "plain")
    assert torch.equal(again.classifier.weight, model.classifier.weight)
    model.classifier = CosineHead(16, CLASSES)
    with pytest.raises(ValueError, match="CosineHead"):
        model.save_pretrained(tmp_path / "cosine")


def one_label_in_the_configuration() -> nn.Module:
    model = bert()
    model.config.num_labels = 1
    return model


def two_classifiers() -> nn.Module:
    model = bert()
    model.score = nn.Linear(16, 3)
    return model


@pytest.mark.parametrize(
    ("build", "classifier", "message"),
    [
        (lambda: bert(problem_type="regression"), None, r"config\.problem_type.*regression"),
        (lambda: bert(problem_type="multi_label_classification"), None, r"config\.problem_type.*multi_label"),
        (lambda: bert(num_labels=1), None, "got 1"),
        (one_label_in_the_configuration, None, r"config\.num_labels"),
        (lambda: hf.BertForQuestionAnswering(hf.BertConfig(**TEXT)), None, "BertForQuestionAnswering"),
        (lambda: hf.BertForMaskedLM(hf.BertConfig(**TEXT)), "cls.predictions.decoder", "word_embeddings"),
        (two_classifiers, None, r"'classifier' \(16 -> 3\), 'score' \(16 -> 3\)"),
    ],
)
def test_other_models_are_refused(build, classifier, message):
    refused(build(), message, classifier)


def test_wrapped_timm_model():
    config = hf.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224",
        num_labels=3,
        model_args={"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2},
    )
    model = maxsep.attach(hf.TimmWrapperForImageClassification(config), CLASSES)
    assert [path for path, _ in find_heads(model)] == ["timm_model.head"]
    assert model.config.num_labels == CLASSES
    assert model(torch.randn(2, 3, 32, 32)).logits.shape == (2, CLASSES)


def test_a_config_without_labels_follows_too():
    config = hf.PvtConfig(
        image_size=32, hidden_sizes=[8, 8], depths=[1, 1], num_encoder_blocks=2, sequence_reduction_ratios=[2, 1],
        num_attention_heads=[1, 1], patch_sizes=[4, 2], strides=[4, 2], mlp_ratios=[1, 1], num_labels=4,
    )  # fmt: skip
    model = maxsep.attach(hf.PvtForImageClassification(config), num_classes=7)
    assert model.config.num_labels == 7
    assert len(model.config.id2label) == 7
    assert model(torch.randn(1, 3, 32, 32)).logits.shape == (1, 7)
