"""Tables of paths and labels, and Hugging Face datasets: the same pictures as from class folders."""

import shutil

import pytest
import torch
from PIL import Image

from maxsep.lab.data import Dataset
from maxsep.lab.data.listing import FolderError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Two classes of five pictures that differ, in class folders."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / ".hf"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / ".hf")
    for number, name in enumerate(("<b>cat</b>", "dog")):
        folder = tmp_path / "tree" / name.replace("/", "")
        folder.mkdir(parents=True)
        for i in range(5):
            Image.new("RGB", (8, 8), (20 * i, 0, 90 * number)).save(folder / f"{i}.png")
    return tmp_path / "tree"


def rows_of(tree):
    return [(path, path.parent.name) for path in sorted(tree.rglob("*.png"))]


def write_table(tree, suffix, rows, columns=("path", "label")):
    table = datasets.Dataset.from_list([dict(zip(columns, map(str, row), strict=True)) for row in rows])
    path = tree.with_name(f"table{suffix}")
    if suffix == ".parquet":
        table.to_parquet(path)
    else:
        lines = [";".join(columns), *(";".join(map(str, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return path


def hugging_face(tree):
    """The pictures as a Hugging Face dataset that holds their bytes."""
    classes = datasets.ClassLabel(names=sorted({label for _, label in rows_of(tree)}))
    features = datasets.Features(image=datasets.Image(), label=classes)
    rows = [{"image": {"bytes": p.read_bytes(), "path": p.name}, "label": name} for p, name in rows_of(tree)]
    return datasets.Dataset.from_list(rows, features=features)


def read(name, size=8):
    return Dataset.find(f"{name}?size={size}").read()


def assert_same(one, other):
    assert (one.train.classes, one.train.class_counts) == (other.train.classes, other.train.class_counts)
    for part in ("train", "test"):
        assert torch.equal(getattr(one, part).images, getattr(other, part).images)


@pytest.mark.parametrize("form", ["csv", "parquet", "absolute", "saved", "hf parquet", "bare saved", "bare csv"])
def test_every_form_has_the_pictures_of_the_folder(tree, form):
    relative = [(path.relative_to(tree.parent), label) for path, label in rows_of(tree)]
    if form in ("csv", "bare csv", "parquet", "absolute"):
        rows = rows_of(tree) if form == "absolute" else relative
        path = write_table(tree, ".parquet" if form == "parquet" else ".csv", rows)
        name = str(path) if form.startswith("bare") else f"table:{path}"
    else:
        path = tree.with_name("saved.parquet" if "parquet" in form else "saved")
        data = hugging_face(tree)
        data.to_parquet(path) if "parquet" in form else data.save_to_disk(path)
        name = str(path) if form.startswith("bare") else f"hf:{path}"
    data = read(name)
    assert_same(data, read(tree))
    dataset = Dataset.parse(data.name)
    assert dataset.path == str(path)
    assert (dataset.train_counts(), dataset.fingerprint()) == (data.train.class_counts, data.fingerprint)
    assert dataset.default_network == "resnet32"
    assert dataset.is_own


@pytest.mark.parametrize("form", ["csv", "saved"])
def test_another_label_is_other_data_and_another_place_is_not(tree, monkeypatch, form):
    monkeypatch.setattr("maxsep.lab.data.listing.MAPPED", 0)  # decoded into a folder
    monkeypatch.setenv("MAXSEP_CACHE", str(tree.with_name("cache")))

    def write(root, *names):
        shutil.copytree(tree, root / "tree", dirs_exist_ok=True)
        if form == "csv":
            rows = [(path.relative_to(root), n) for (path, _), n in zip(rows_of(root), names, strict=True)]
            return write_table(root / "tree", ".csv", rows)
        data = hugging_face(tree).remove_columns("label").add_column("label", names)
        data.save_to_disk(root / "".join(names))
        return f"hf:{root / ''.join(names)}"

    first = read(write(tree.with_name("one"), *"aaaaabbbbb"))
    assert read(write(tree.with_name("two"), *"aaaaabbbbb")).fingerprint == first.fingerprint
    other = read(write(tree.with_name("one"), *"aaaabbbbbb"))
    assert other.fingerprint != first.fingerprint
    assert [a + b for a, b in zip(other.train.class_counts, other.test.class_counts, strict=True)] == [4, 6]


def test_other_pictures_of_the_same_size_are_decoded_again(tree, monkeypatch):
    monkeypatch.setattr("maxsep.lab.data.listing.MAPPED", 0)
    monkeypatch.setenv("MAXSEP_CACHE", str(tree.with_name("cache")))
    for level in (1, 2):
        for path in tree.rglob("*.png"):
            Image.new("RGB", (8, 8), (level, int(path.stem), len(path.parent.name))).save(path, "BMP")
        hugging_face(tree).to_parquet(tree.with_name("saved.parquet"))
        assert read(f"hf:{tree.with_name('saved.parquet')}").train.images[:, 0].unique().tolist() == [level]
        hugging_face(tree).save_to_disk(tree.with_name(f"saved{level}"))
        tree.with_name(f"saved{level}").rename(tree.with_name("saved"))
        assert read(f"hf:{tree.with_name('saved')}").train.images[:, 0].unique().tolist() == [level]
        shutil.rmtree(tree.with_name("saved"))


def test_own_splits_and_columns_of_other_names(tree):
    rows = [(p, name, "val" if p.stem == "4" else "Train") for p, name in rows_of(tree)]
    data = read(write_table(tree, ".csv", rows, ("Filename", "Class", "split")))
    assert (data.train.class_counts, data.test.class_counts) == ([4, 4], [1, 1])
    parts = {"train": hugging_face(tree).select(range(1, 9)), "validation": hugging_face(tree).select([0, 9])}
    datasets.DatasetDict(parts).save_to_disk(tree.with_name("saved"))
    data = read(f"hf:{tree.with_name('saved')}")
    assert (data.train.class_counts, data.test.class_counts) == ([4, 4], [1, 1])
    assert not Dataset.parse(data.name).draws_test()


def test_a_name_that_begins_with_a_tilde_is_no_user(tree, tmp_path):
    (tree / "dog" / "1.png").rename(tmp_path / "~1.png")
    data = read(write_table(tree, ".csv", [*rows_of(tree), ("~1.png", "dog")]))
    assert sum(data.train.class_counts) + sum(data.test.class_counts) == 10
    for call in (Dataset.find, lambda name: Dataset.parse("cifar10").read(name)):
        with pytest.raises((ValueError, OSError), match="~no-such-user"):
            call("~no-such-user/pictures")


def test_all_problems_of_a_table_at_once(tree):
    bad = [("nowhere.png", "dog"), (rows_of(tree)[0][0], ""), ("", "dog"), (tree / "dog" / "1.png", "dog")]
    rows = [*rows_of(tree), *bad]
    (tree / "dog" / "0.png").write_bytes(b"no picture")
    path = write_table(tree, ".csv", rows)
    with pytest.raises(FolderError) as caught:
        read(path)
    problems = caught.value.problems
    assert len(problems) >= 4
    assert all(any(word in line for line in problems) for word in ("nowhere.png", "row 13", "row 14", "0.png"))
    data = Dataset.find(str(path), size=8, skip_broken=True).read()
    with pytest.raises(FolderError) as caught:
        read(write_table(tree, ".tsv", [("nowhere.png", "dog"), ("gone.png", "cat")]))
    assert all(any(name in line for line in caught.value.problems) for name in ("nowhere.png", "gone.png"))
    expected = ["0.png", *sorted(2 * [f"{i}.png" for i in range(1, 5)])]
    assert sorted(file.name for file in (*data.train.files, *data.test.files)) == expected


def test_problems_of_a_hugging_face_dataset(tree):
    rows = [{"image": {"bytes": p.read_bytes(), "path": None}, "label": name} for p, name in rows_of(tree)]
    rows[0]["image"]["bytes"], rows[3]["label"] = b"no picture", None
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tree.with_name("saved"))
    with pytest.raises(FolderError) as caught:
        read(f"hf:{tree.with_name('saved')}")
    assert len(caught.value.problems) == 2
    data = Dataset.find(f"hf:{tree.with_name('saved')}", size=8, skip_broken=True).read()
    assert len(data.train) + len(data.test) == 8


def test_what_is_no_table_or_dataset(tree, monkeypatch):
    wrong = write_table(tree, ".csv", [("a", "b")], ("x", "y"))
    hugging_face(tree).rename_column("label", "kind").save_to_disk(tree.with_name("saved"))
    for name in (wrong, f"hf:{tree.with_name('saved')}", "table:nowhere.csv", "hf:", f"table:{tree}"):
        with pytest.raises((ValueError, OSError)) as caught:
            read(name)
        assert "--skip-broken" not in str(caught.value), "it would end in the same way"
    monkeypatch.setattr(datasets, "__version__", "3.6.0")
    with pytest.raises(ImportError, match="4"):
        read(f"hf:{tree.with_name('saved')}")
    script = tree.with_name("scripted")
    script.mkdir()
    (script / "scripted.py").write_text("raise SystemExit('a script of a dataset was run')")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="scripted"):
        read(f"hf:{script}")
