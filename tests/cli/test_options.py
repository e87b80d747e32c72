"""What the verbs share: src/maxsep/cli/options.py."""

import pytest
import torch

from maxsep.cli.options import execution, numbers, precision, words


@pytest.mark.parametrize(("there", "device", "on_gpu"), [
    (True, "auto", True), (True, "cpu", False), (False, "auto", False), (False, "cuda", True),
])  # fmt: skip
def test_a_gpu_gets_everything_that_is_fast(monkeypatch, there, device, on_gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    how = execution(device, None).resolve("cuda" if on_gpu else "cpu")
    assert (how.compile, how.channels_last, how.cuda_graph) == (on_gpu,) * 3
    assert precision(device) == ("bf16-mixed" if on_gpu else "32-true")


def test_asked_for_it_a_cpu_compiles_but_captures_nothing():
    how = execution("cpu", fast=True)
    assert (how.compile, how.cuda_graph) == (True, False)
    assert not execution("cuda", fast=False).cuda_graph


def test_several_values_with_commas_or_given_again():
    assert words("--loss", ["a, b", "c"], "a") == ["a", "b", "c"]
    assert numbers("--radius", None, "1,0.1") == [1.0, 0.1]
    with pytest.raises(ValueError, match=r"--loss must name values with commas between them, such as a, got 'a,,b'"):
        words("--loss", ["a,,b"], "a")
    with pytest.raises(ValueError, match=r"--radius must be numbers with commas, such as 1, got '1,x'"):
        numbers("--radius", ["1", "x"], "1")
