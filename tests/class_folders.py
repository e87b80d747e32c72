"""Class folders of small pictures."""

from PIL import Image


def write_classes(folder, size=(8, 8), **counts):
    """Write so many pictures of each class, no two of which are equal; the classes differ in red."""
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("RGB", size, (120 * number + i, i, len(folder.name))).save(folder / name / f"{i:02d}.bmp")
    return folder
