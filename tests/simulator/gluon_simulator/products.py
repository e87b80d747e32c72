"""Products of the matrix units, which read their factors as late as they may."""

from gluon_simulator.machine import RuleError, here
from gluon_simulator.shared_memory import View


class Sums:
    """Accumulators of products that are under way: they are no numbers before these are waited for."""

    def __init__(self, numbers):
        self.numbers = numbers


def warpgroup_mma(a, b, acc, use_acc=True, *, is_async):
    """Start to add a product to accumulators."""
    assert is_async
    sums = acc if isinstance(acc, Sums) else Sums(acc)
    views = [factor for factor in (a, b) if isinstance(factor, View)]
    slots = [view.slot for view in views]
    for view in views:
        if here().machine.is_written(view.slot):
            raise RuleError("a product of numbers that were stored without a fence")
        view.read()
        view.slot.products += 1
    versions = [slot.version for slot in slots]

    def execute():
        for slot, version in zip(slots, versions, strict=True):
            if slot.version != version or slot.state != "full":
                raise RuleError("a slot was overwritten before its product")
            slot.products -= 1
        left, right = (factor.data if isinstance(factor, View) else factor for factor in (a, b))
        product = left.float() @ right.float()
        sums.numbers = sums.numbers + product if use_acc else product

    here().products.append(execute)
    here().step()
    return sums


def warpgroup_mma_wait(pending, deps):
    """Wait until no more than so many products are under way."""
    products = here().products
    while len(products) > pending:
        products.pop(0)()
    here().step()
    return deps[0] if products else deps[0].numbers
