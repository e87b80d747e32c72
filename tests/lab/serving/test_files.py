import os

import pytest

from maxsep.lab.serving import find_images


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in ("b.png", "a.JPG", "notes.txt", "odd", "deep/c.webp", "deep/.hidden/d.png", ".e.png", "empty/x.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["b.png", "a.JPG"], ["b.png", "a.JPG"]),
        (["odd", "b.png", "odd"], ["odd", "b.png", "odd"]),
        (["."], ["a.JPG", "b.png", "deep/c.webp"]),
        (["deep", "b.png"], ["deep/c.webp", "b.png"]),
        (["*.png"], ["b.png"]),
        (["**/*.webp", "d*p"], ["deep/c.webp", "deep/c.webp"]),
    ],
)
def test_files_folders_and_patterns_in_the_order_asked_for(place, asked, found):
    images, missing, _ = find_images(asked)
    assert [os.fspath(path) for path in images] == found
    assert not missing


def test_other_files_of_folders_are_skipped_and_listed(place):
    assert [os.fspath(path) for path in find_images(["."]).skipped] == ["empty/x.csv", "notes.txt", "odd"]
    assert [os.fspath(path) for path in find_images(["odd", "deep", "empty"]).skipped] == ["empty/x.csv"]
    assert find_images(["odd", "notes.txt", "*.txt"]).skipped == [], "what is named itself is read"


def test_a_name_that_looks_like_a_pattern_is_a_file_if_it_exists(place):
    (place / "a[1].png").touch()
    assert [path.name for path in find_images(["a[1].png"])[0]] == ["a[1].png"]


def test_what_is_not_there_is_named(place):
    images, missing, _ = find_images(["gone.png", "b.png", "*.gif", "empty"])
    assert [path.name for path in images] == ["b.png"]
    assert [item.path for item in missing] == ["gone.png", "*.gif", "empty"]
    told = [item.reason for item in missing]
    assert told[:2] == ["gone.png does not exist.", "*.gif matches no file."]
    assert told[2].startswith("empty is a folder without images (.bmp, ")
