"""Class folders of small pictures."""

from PIL import Image
from sklearn.datasets import load_digits


def write_classes(folder, size=(8, 8), **counts):
    """Write so many pictures of each class, no two of which are equal; the classes differ in red."""
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("RGB", size, (120 * number + i, i, len(folder.name))).save(folder / name / f"{i:02d}.bmp")
    return folder


def write_digits(folder, size=8, labels=range(10), count=None):
    """Write so many pictures of some digits, by default all."""
    data = load_digits()
    for label in labels:
        (folder / str(label)).mkdir(parents=True)
        for number, image in enumerate(data.images[data.target == label][:count]):
            picture = Image.fromarray((image * 15).astype("uint8")).resize((size, size))
            picture.save(folder / str(label) / f"{number}.png")
    return folder
