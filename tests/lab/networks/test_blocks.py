"""The residual block's rectifier: ReLU's values and gradients, from less memory."""

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from maxsep.lab.networks.blocks import Rectifier, rectify


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def test_it_is_relu_eager_and_compiled_also_at_zero_and_nan():
    values = torch.tensor([-2.0, -0.0, 0.0, 3.0, float("nan"), float("inf"), -float("inf")])
    for function in (rectify, compiled(rectify), Rectifier()):
        x, y = values.clone().requires_grad_(), values.clone().requires_grad_()
        out, expected = function(x), F.relu(y)
        torch.testing.assert_close(out, expected, equal_nan=True, rtol=0, atol=0)
        finite = torch.isfinite(values)
        out[finite].sum().backward()
        expected[finite].sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


def comparisons_of_backward(activation):
    """What the compiled backward pass compares with zero: inputs of the graph, or numbers computed anew."""
    layer = nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), activation, nn.Conv2d(4, 4, 3))
    compared = []

    def backward(graph, _):
        for node in graph.graph.nodes:
            if "aten.le" in str(node.target):
                source = node.args[0]
                while "aten.alias" in str(source.target):
                    source = source.args[0]
                compared.append(source.op)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        bw_compiler=backward,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )
    torch.compile(layer, backend=backend)(torch.randn(2, 4, 8, 8)).sum().backward()
    return compared


def test_the_compiled_gradient_does_not_read_the_result_back():
    assert comparisons_of_backward(nn.ReLU()) == ["placeholder"]  # the saved result: what this form avoids
    assert comparisons_of_backward(Rectifier()) == ["call_function"]
