"""The official python batches, whole and damaged."""

import pickle
import random

import numpy as np
import pytest
import torch

from maxsep.lab.data.checksums import record
from maxsep.lab.data.cifar import LAYOUTS, load_cifar


@pytest.mark.parametrize("writer", ["python2", "python3"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_reads_what_was_written(tmp_path, write_cifar, cifar_batch, name, writer):
    write_cifar(tmp_path, name, writer)
    data = load_cifar(name, tmp_path)
    classes = LAYOUTS[name].num_classes
    assert data.name == name
    assert data.train.images.shape == (2 * classes, 3, 32, 32)
    assert data.train.classes == tuple(f"class {i}" for i in range(classes))
    assert data.train.class_counts == [2] * classes
    n = len(data.train) // len(LAYOUTS[name].train)
    first = cifar_batch(name, n)
    assert np.array_equal(data.train.images[:n].reshape(n, -1).numpy(), first["data"])
    assert data.train.labels[:n].tolist() == first[LAYOUTS[name].labels_key]
    # A row of the file is the red plane, then green, then blue, each row by row.
    assert data.train.images[0, 1, 0, 0] == first["data"][0, 1024]
    assert data.train.images[0, 0, 1, 0] == first["data"][0, 32]
    data.train.images[0, 0, 0, 0] = 7  # the tensor is ours to write, not a view of the file's bytes
    assert torch.is_tensor(data.test.labels)


@pytest.mark.parametrize("part", ["data_batch_3", "test_batch", "batches.meta"])
def test_missing_part_is_named(tmp_path, write_cifar, part):
    folder = write_cifar(tmp_path)
    (folder / part).unlink()
    with pytest.raises(FileNotFoundError, match=f"{part} is missing.*unpack the archive again"):
        load_cifar("cifar10", tmp_path)


BAD_BATCHES = {
    "too few pixels": ({"data": np.zeros((4, 3071), np.uint8)}, r"shape \(N, 3072\), got \(4, 3071\)"),
    "images not rows": ({"data": np.zeros((4, 3, 32, 32), np.uint8)}, r"got \(4, 3, 32, 32\)"),
    "no image": ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, r"got \(0, 3072\)"),
    "no array": ({"data": [1, 2]}, "got list"),
    "floats": ({"data": np.zeros((4, 3072))}, "array of type 'f8'; images are unsigned bytes"),
    "label too large": ({"labels": [0, 1, 2, 10]}, "label 10 of image 3 is out of range.*0 to 9"),
    "label negative": ({"labels": [-1, 1, 2, 3]}, "label -1 of image 0 is out of range"),
    "label no number": ({"labels": [0, 1.5, 2, 3]}, "label 1.5 of image 1"),
    "label true": ({"labels": [0, True, 2, 3]}, "label True of image 1"),
    "one-hot": ({"labels": [[1, 0], [0, 1], [1, 0], [1, 0]]}, r"label \[1, 0\] of image 0"),
    "too few labels": ({"labels": [0, 1]}, "list of 4 labels, one per image, got 2 labels"),
    "labels no list": ({"labels": "0123"}, "list of 4 labels, one per image, got str"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_bad_batch_is_one_clear_error(tmp_path, write_cifar, cifar_batch, case):
    changes, message = BAD_BATCHES[case]
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(pickle.dumps(cifar_batch("cifar10", 4, **changes), protocol=2))
    with pytest.raises(ValueError, match=f"data_batch_2.*{message}.*fetch the official archive again"):
        load_cifar("cifar10", tmp_path)


def test_missing_entry_and_wrong_container(tmp_path, write_cifar):
    folder = write_cifar(tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps({"data": 1}, protocol=2))
    with pytest.raises(ValueError, match=r"test_batch has no entry 'labels'; it has \['data'\]"):
        load_cifar("cifar10", tmp_path)
    (folder / "test_batch").write_bytes(pickle.dumps([1], protocol=2))
    with pytest.raises(ValueError, match="test_batch must hold a dictionary, got list"):
        load_cifar("cifar10", tmp_path)


@pytest.mark.parametrize(("names", "message"), [(["a"], "must list 10 class names"), ([3] * 10, "must hold text only")])
def test_bad_class_names(tmp_path, write_cifar, names, message):
    folder = write_cifar(tmp_path)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    with pytest.raises(ValueError, match=f"batches.meta: 'label_names' {message}"):
        load_cifar("cifar10", tmp_path)


def test_class_without_training_image(tmp_path, write_cifar, cifar_batch):
    folder = write_cifar(tmp_path)
    for part in LAYOUTS["cifar10"].train:
        content = cifar_batch("cifar10", 4, labels=[0, 1, 2, 3])
        (folder / part).write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=r"class 4 \(class 4\) has no training image in data_batch_1"):
        load_cifar("cifar10", tmp_path)


@pytest.mark.parametrize("part", ["data_batch_1", "data_batch_4", "test_batch"])
@pytest.mark.parametrize("writer", ["python2", "python3"])
def test_a_batch_shorter_than_the_meta_file_says_is_named(
    tmp_path, write_cifar, cifar_batch, python2_pickle, part, writer
):
    folder = write_cifar(tmp_path, writer=writer)
    dumps = python2_pickle if writer == "python2" else pickle.dumps
    meta = {"label_names": [f"class {i}" for i in range(10)], "num_cases_per_batch": 4}
    (folder / "batches.meta").write_bytes(dumps(meta))
    assert len(load_cifar("cifar10", tmp_path).train) == 20
    longer = ("data_batch_2", cifar_batch("cifar10", 14))  # so that no class goes missing
    for name, batch in (longer, (part, cifar_batch("cifar10", 3))):
        (folder / name).write_bytes(pickle.dumps(batch))
    first = min(part, "data_batch_2")
    sizes = f"expected 4 images, as batches.meta says, found {3 if first == part else 14}"
    with pytest.raises(ValueError, match=rf"{first}: {sizes}\. .*fetch the official archive again"):
        load_cifar("cifar10", tmp_path)


@pytest.mark.parametrize("part", ["data_batch_2", "test_batch"])
def test_without_such_a_number_all_batches_must_be_as_long(tmp_path, write_cifar, cifar_batch, part):
    folder = write_cifar(tmp_path)
    (folder / part).write_bytes(pickle.dumps(cifar_batch("cifar10", 5, start=3)))
    with pytest.raises(ValueError, match=rf"{part}: expected 4 images, as data_batch_1 has, found 5"):
        load_cifar("cifar10", tmp_path)


@pytest.mark.parametrize("number", ["4", 0, True, None])
def test_a_number_of_images_that_is_none(tmp_path, write_cifar, number):
    folder = write_cifar(tmp_path)
    meta = {"label_names": [f"class {i}" for i in range(10)], "num_cases_per_batch": number}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta))
    with pytest.raises(
        ValueError, match=r"batches.meta: 'num_cases_per_batch' must be the number of images in a batch"
    ):
        load_cifar("cifar10", tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_cifar100_has_equally_many_images_of_every_class(tmp_path, write_cifar, cifar_batch, part):
    folder = write_cifar(tmp_path, "cifar100")
    (folder / part).write_bytes(pickle.dumps(cifar_batch("cifar100", 199)))
    message = rf"{part}: expected 2 images of every class, found 1 of class 99 \(class 99\), 199 in all"
    with pytest.raises(ValueError, match=message):
        load_cifar("cifar100", tmp_path)


def test_a_label_that_unfolds_without_end_is_refused_in_a_line(tmp_path, write_cifar, cifar_batch):
    label = [1]
    for _ in range(200):
        label = [label, label]
    folder = write_cifar(tmp_path)
    (folder / "data_batch_2").write_bytes(pickle.dumps(cifar_batch("cifar10", 4, labels=[0, 1, 2, label]), protocol=2))
    with pytest.raises(ValueError, match=r"data_batch_2: label \[\[.* of image 3 is out of range") as caught:
        load_cifar("cifar10", tmp_path)
    assert len(str(caught.value)) < 500


def test_hostile_batch_is_refused_not_run(tmp_path, write_cifar):
    folder = write_cifar(tmp_path)
    marker = tmp_path / "executed"
    (folder / "data_batch_1").write_bytes(f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode())
    with pytest.raises(ValueError, match=r"data_batch_1 was not read: it asks for 'posix.system'"):
        load_cifar("cifar10", tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("writer", ["python2", "python3"])
def test_truncated_or_lengthened_batch_is_named(tmp_path, write_cifar, writer):
    path = write_cifar(tmp_path, writer=writer) / "data_batch_4"
    content = path.read_bytes()
    rng = random.Random(1)
    for damaged in [content[: rng.randrange(len(content))] for _ in range(50)] + [content + b"\0"]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="data_batch_4 was not read"):
            load_cifar("cifar10", tmp_path)


def test_every_flipped_bit_is_noticed_where_sums_are_kept(tmp_path, write_cifar):
    folder = write_cifar(tmp_path)
    record(folder, sorted(path.name for path in folder.iterdir()))
    load_cifar("cifar10", tmp_path)
    path = folder / "data_batch_5"
    content, rng = path.read_bytes(), random.Random(2)
    for _ in range(30):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"data_batch_5 is damaged: its SHA-256 is \w{64}, .*says \w{64}"):
            load_cifar("cifar10", tmp_path)
