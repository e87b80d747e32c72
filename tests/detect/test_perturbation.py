import pytest
import torch

from maxsep.detect.perturbation import step_direction


def total(x):
    return x.flatten(1).sum(1)


def test_zero_gradients_count_as_positive_and_channels_are_divided_by_their_std():
    x = torch.tensor([[[-1.0, 1.0], [0.0, 2.0]]])  # one sample, two channels, two pixels
    told = step_direction(lambda x: (x**2).flatten(1).sum(1), x, torch.tensor([0.5, 2.0]))
    assert told.tolist() == [[[-2.0, 2.0], [0.5, 0.5]]]
    assert step_direction(total, x, 0.1).unique().tolist() == pytest.approx([10.0])


def test_the_input_keeps_its_type_and_takes_no_gradient():
    x = torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True)
    told = step_direction(total, x, [1.0, 2.0, 4.0])
    assert told.dtype == torch.bfloat16
    assert told[0].tolist() == [1.0, 0.5, 0.25]
    assert x.grad is None
    assert not told.requires_grad


def test_inputs_made_in_inference_mode_can_be_stepped():
    with torch.inference_mode():
        x = torch.zeros(1, 2)
        assert step_direction(total, x).tolist() == [[1.0, 1.0]]
    assert step_direction(total, x).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("objective", "x", "std", "kind", "message"),
    [
        (
            lambda x: x.detach().sum(1),
            torch.zeros(1, 2),
            None,
            ValueError,
            "does not depend on x through differentiable",
        ),
        (lambda x: x.sqrt().sum(1), torch.full((1, 2), -1.0), None, ValueError, "gradient of the score in x holds NaN"),
        (
            total,
            torch.zeros(1, 2).byte(),
            None,
            TypeError,
            "x must be a real floating-point tensor, got dtype torch.uint8",
        ),
        (
            total,
            torch.zeros(1, 2),
            [1.0],
            ValueError,
            r"one number per channel, got shape \(1,\) for inputs of shape \(1, 2\)",
        ),
        (total, torch.zeros(1, 2), [[1.0, 1.0]], ValueError, r"one number per channel, got shape \(1, 2\)"),
        (total, torch.zeros(1, 2), [1.0, 0.0], ValueError, r"std must be above zero, got \[1.0, 0.0\]"),
    ],
)
def test_bad_input_is_explained(objective, x, std, kind, message):
    with pytest.raises(kind, match=message):
        step_direction(objective, x, std)
