"""Datasets by name: what a name means, facts without reading, one read for many runs, normalisation."""

import pytest
import torch
from class_folders import write_classes
from typer.testing import CliRunner

from maxsep.cli.app import app
from maxsep.lab.data import Dataset, ImageSet, Splits, fingerprints_differ, folder, listing, normalisation, prepare
from maxsep.lab.spec import RunSpec


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAXSEP_DATA", raising=False)
    return write_classes(tmp_path / "my" / "pictures", cat=10, dog=4, eel=2)


@pytest.fixture
def calls(monkeypatch):
    """Count how often a folder is listed and pictures are decoded."""
    counts = {"clean_listing": 0, "decode": 0}

    def count(name, function):
        def counted(*arguments):
            counts[name] += 1
            return function(*arguments)

        return counted

    for name, module in (("clean_listing", folder), ("decode", listing)):
        monkeypatch.setattr(module, name, count(name, getattr(module, name)))
    return counts


@pytest.mark.parametrize(
    ("name", "source", "size", "path", "label"),
    [
        ("digits", "digits", 8, "", "Digits"),
        ("cifar10", "cifar10", 32, "", "CIFAR-10"),
        ("imagenet_lt", "imagenet_lt", 224, "", "ImageNet-LT"),
        ("imagenet?size=64", "imagenet", 64, "", "ImageNet, 64 pixels"),
        ("osr_cifar+_3", "cifar10", 32, "", "CIFAR+ split 3"),
        ("osr_digits_0", "digits", 8, "", "Digits split 0"),
        ("folder:/a/birds/", "folder", 32, "/a/birds/", "birds"),
        ("folder:a?b?size=16", "folder", 16, "a?b", "a?b, 16 pixels"),
        ("table:/a/b.csv?size=16&skip_broken=1", "table", 16, "/a/b.csv", "b.csv, 16 pixels"),
        ("hf:user/name", "hf", 32, "user/name", "name"),
    ],
)
def test_names(name, source, size, path, label):
    dataset = Dataset.parse(name)
    assert (dataset.name, dataset.source, dataset.size) == (name, source, size)
    assert (dataset.path, dataset.label) == (path, label)


def test_names_of_no_dataset():
    sizes = ("cifar10?size=64", "digits?skip_broken=1", "imagenet?size=31", "imagenet_lt?size=x", "folder:a?size=2000")
    for name in ("", "mnist", "folder:", "osr_cifar10_5", "osr_mnist_0", "osr_cifar+", "my/pictures", *sizes):
        with pytest.raises(ValueError, match=r"dataset|size|data"):
            Dataset.parse(name)


def test_what_a_user_types(pictures, tmp_path):
    (tmp_path / "link").symlink_to(pictures)
    for typed in ("my/pictures", "my/pictures/", "./my/pictures", "folder:my/pictures", str(pictures), "my/../link"):
        assert Dataset.find(typed).name == f"folder:{pictures}"
        assert Dataset.find(typed, size=16, skip_broken=True).name == f"folder:{pictures}?size=16&skip_broken=1"
        assert Dataset.find(f"{typed}?skip_broken=1").name == f"folder:{pictures}?skip_broken=1"
    (tmp_path / "link").unlink()
    with pytest.raises(ValueError, match="class folders"):
        Dataset.find(str(tmp_path))  # refused before anything is planned for it
    assert Dataset.find("pictures", pictures.parent).name == f"folder:{pictures}"
    assert Dataset.find("my/pictures/?size=16").read().train.shape == (3, 16, 16)
    assert Dataset.find("imagenet", size=64).name == "imagenet?size=64"
    write_classes(pictures.parent.parent / "digits", a=2, b=2)
    assert Dataset.find("digits").source == "digits", "known names win over folders"
    assert Dataset.find("./digits").name == f"folder:{tmp_path / 'digits'}"

    for typed, size in (("mnist", None), ("digits", 16), ("my/pictures?size=8", 16), ("my/pictures", 2000)):
        with pytest.raises(ValueError, match=str(size) if size else typed):
            Dataset.find(typed, size=size)


def test_a_default_size_is_for_pictures_without_one():
    names = {"imagenet": "imagenet?size=64", "imagenet?size=32": "imagenet?size=32", "digits": "digits"}
    names |= {"hf:a?skip_broken=1": "hf:a?size=64&skip_broken=1", "table:a.csv": "table:a.csv?size=64"}
    names |= {"folder:a": "folder:a?size=64", "folder:a?size=8": "folder:a?size=8", "osr_svhn_1": "osr_svhn_1"}
    assert {name: Dataset.parse(name).with_default_size(64).name for name in names} == names


def test_facts_without_reading(pictures, tmp_path):
    mine = Dataset.parse("folder:my/pictures?size=16")
    assert mine.train_counts() == mine.read().train.class_counts == [8, 2, 1]
    assert mine.fingerprint() == mine.read().fingerprint == Dataset.parse("folder:my/pictures").fingerprint()
    digits = Dataset.parse("digits")
    assert digits.train_counts() == digits.read().train.class_counts
    assert Dataset.parse("osr_digits_2").train_counts() == Dataset.parse("osr_digits_2").read().train.class_counts
    assert digits.fingerprint() is None
    assert not fingerprints_differ(None, "a", None)
    assert fingerprints_differ("a", None, "b")
    for nothing in (f"folder:{tmp_path}", "folder:nowhere"):
        assert Dataset.parse(nothing).train_counts(tmp_path) is None
        assert Dataset.parse(nothing).fingerprint(tmp_path) is None


def test_where_test_images_come_from(tmp_path):
    write_classes(tmp_path / "own" / "train", cat=3, dog=2)
    write_classes(tmp_path / "own" / "val", cat=1, dog=1)
    write_classes(tmp_path / "flat", a=2, b=2)
    own, flat = (Dataset.parse(f"folder:{tmp_path / name}") for name in ("own", "flat"))
    assert str(tmp_path / "own") in own.test_description
    assert (own.draws_test(), flat.draws_test(), Dataset.parse("cifar10").draws_test()) == (False, True, False)


def test_train_lists_and_decodes_a_folder_once_and_a_grid_decodes_it_once(pictures, calls):
    line = ["train", "--dataset", "my/pictures?size=8", "--network", "mlp", "--epochs", "1", "--device", "cpu"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    assert calls == {"clean_listing": 1, "decode": 2}
    first, second = (prepare(RunSpec(dataset="folder:my/pictures?size=8", seed=seed)) for seed in range(2))
    assert first.train.images is second.train.images
    assert calls == {"clean_listing": 3, "decode": 2 + 2}, "a run looks whether files have changed"


@pytest.mark.parametrize("change", ["new", "other size", "other pixels"])
def test_a_changed_folder_is_read_again(pictures, calls, change):
    dataset = Dataset.parse("folder:my/pictures?size=8")
    before = dataset.read()
    path = pictures / "cat" / ("new.bmp" if change == "new" else "00.bmp")
    content = b"" if change == "new" else path.read_bytes()
    path.write_bytes((pictures / "cat" / "01.bmp").read_bytes())
    if change == "other size":
        path.write_bytes(content + b"more")
    after = dataset.read()
    assert calls["decode"] == 4, "training and test pictures, twice"
    # the fingerprint does not see other pixels in as many bytes, but the time of the change does
    assert (before.fingerprint == after.fingerprint) == (change == "other pixels")


def test_only_the_last_dataset_is_kept(tmp_path, write_cifar):
    write_cifar(tmp_path, "cifar10")
    cifar = Dataset.parse("cifar10").read(tmp_path)
    assert Dataset.parse("cifar10").read(tmp_path) is cifar
    assert Dataset.parse("digits").read() is Dataset.parse("digits").read(tmp_path)
    assert Dataset.parse("cifar10").read(tmp_path) is not cifar
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="test_batch"):
        Dataset.parse("cifar10").read(tmp_path)


def test_the_data_folder(tmp_path, write_cifar, monkeypatch):
    monkeypatch.delenv("MAXSEP_DATA", raising=False)
    with pytest.raises(ValueError, match="MAXSEP_DATA"):
        Dataset.parse("cifar100").read()
    write_cifar(tmp_path, "cifar100")
    monkeypatch.setenv("MAXSEP_DATA", str(tmp_path))
    assert Dataset.parse("cifar100").read().train.num_classes == 100
    write_classes(tmp_path / "mine", a=2, b=2)
    assert Dataset.parse("folder:mine").read().name == "folder:mine"
    with pytest.raises(FileNotFoundError, match="nothing"):
        Dataset.parse("folder:nothing").read()


def splits(name="folder:mine", channels=3, values=None):
    pixels = torch.randint(0, 256, (6, channels, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    split = ImageSet(pixels if values is None else values, torch.arange(6) % 2, ("a", "b"))
    return Splits(name, split, split)


def test_published_constants():
    cifar10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    in_bytes = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
    for dataset, name, expected, scale in (("cifar10", "auto", cifar10, 1), ("cifar100", "cifar10_255", in_bytes, 255)):
        for got, values in zip(normalisation(name, splits(dataset)), expected, strict=True):
            torch.testing.assert_close(got * scale, torch.tensor(values))
    imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert Dataset.parse("imagenet_lt?size=64").statistics == imagenet


@pytest.mark.parametrize(
    ("dataset", "name"),
    [("folder:mine", "auto"), ("svhn", "auto"), ("cifar10", "train"), ("osr_cifar10_0", "auto")],
)
def test_other_statistics_are_measured_and_so_are_those_of_every_open_set_split(dataset, name):
    mine = splits(dataset)
    mean, std = normalisation(name, mine)
    pixels = mine.train.images.double() / 255
    torch.testing.assert_close(mean, pixels.mean((0, 2, 3)).float())
    torch.testing.assert_close(std, pixels.std((0, 2, 3), correction=0).float())
    assert mean.dtype == std.dtype == torch.float32
    assert Dataset.parse("osr_digits_0").statistics is None


def test_normalisations_at_the_edge():
    mean, std = normalisation("train", splits(values=torch.full((6, 1, 2, 2), 51, dtype=torch.uint8)))
    assert (mean.item(), std.item()) == (pytest.approx(0.2), 1.0), "a constant channel is not divided by zero"
    with pytest.raises(ValueError, match="places"):
        normalisation("places", splits())
    with pytest.raises(ValueError, match="channels"):
        normalisation("cifar10", splits(channels=1))
