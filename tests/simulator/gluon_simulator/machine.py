"""Who runs when: a program, its partitions, and copies that land in any order."""

import random
import threading

MOST_STEPS = 50_000
MOST_SECONDS = 60

current = threading.local()


class RuleError(Exception):
    """The kernel breaks a rule."""


class StoppedError(BaseException):
    """Another partition has failed; not an Exception, so that no kernel catches it."""


def here():
    """Return the partition that runs in this thread, or the program if it has not come to them."""
    return current.place


class Partition:
    """Warps with a program of their own, and what they have under way."""

    def __init__(self, machine, name, function, given):
        self.machine, self.name, self.condition = machine, name, None
        self.products, self.stores, self.touched, self.written, self.done = [], [], set(), set(), False
        self.baton = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(function, given), daemon=True)

    def _run(self, function, given):
        current.place = self
        self.baton.acquire()
        try:
            if self.machine.error is None:
                function(*given)
                if self.products or self.stores:
                    raise RuleError(f"{self.name} ended with products or stores under way")
        except StoppedError:
            pass
        except BaseException as problem:
            self.machine.error = self.machine.error or problem
        self.done = True
        self.machine.go_on(self)

    def step(self, condition=None):
        """Let others run, and come back when the condition holds."""
        self.condition = condition
        self.machine.go_on(self)
        if self.machine.error is not None:
            raise StoppedError


class Machine:
    """A program: its partitions, and copies that are under way."""

    def __init__(self, program, seed):
        self.machine, self.program, self.error = self, program, None
        self.draw = random.Random(f"{seed} {program}")
        self.haste = self.draw.choice((0.0, 0.3))  # with none, copies land only when nothing else can happen
        self.favour = self.draw.choice((0.0, 0.9))  # how often the first that can run does, and so gets far ahead
        self.partitions, self.flying, self.touched, self.written, self.steps = [], [], set(), set(), 0
        self.has_ring, self.finished = False, threading.Event()

    def step(self):
        """Go on: before the partitions start there is nobody else."""

    def run(self, functions, warps, registers):
        """Run partitions to their end, which is that of the program."""
        if self.touched:
            raise RuleError("the copy engine may not see the barriers: there is no fence")
        assert len(functions) - 1 == len(warps) == len(registers)  # each but the first must be given some
        self.partitions = [Partition(self, f"{f.fn.__name__} {i}", f, given) for i, (f, given) in enumerate(functions)]
        self.draw.shuffle(self.partitions)
        for partition in self.partitions:
            partition.thread.start()
        self.partitions[0].baton.release()
        if not self.finished.wait(MOST_SECONDS):
            self.error = RuleError(f"no end after {MOST_SECONDS} seconds")
            raise self.error
        for partition in self.partitions:
            partition.thread.join()
        if self.error is not None:
            raise self.error
        if self.flying:
            raise RuleError("the program ended with copies under way")

    def go_on(self, now):
        """Choose who runs next, and hand over to it."""
        chosen = self._choose()
        if chosen is None:
            self.finished.set()
            return
        chosen.condition = None
        if chosen is not now:
            chosen.baton.release()
            if not now.done:
                now.baton.acquire()

    def _choose(self):
        self.steps += 1
        if self.steps > MOST_STEPS and self.error is None:
            self.error = RuleError(f"no end after {MOST_STEPS} steps")
        left = [partition for partition in self.partitions if not partition.done]
        while left and self.error is None:
            ready = [partition for partition in left if partition.condition is None or partition.condition()]
            under_way = self.flying or any(partition.stores for partition in self.partitions)
            if under_way and (not ready or self.draw.random() < self.haste):
                self._land()
            elif ready:
                return ready[0] if self.draw.random() < self.favour else self.draw.choice(ready)
            else:
                self.error = RuleError("deadlock: " + ", ".join(partition.name for partition in left))
        return left[0] if left else None  # who comes back to a failure stops

    def _land(self):
        """Let one copy arrive, in no order."""
        stores = [partition.stores for partition in self.partitions if partition.stores]
        if self.flying and (not stores or self.draw.random() < 1 - self.haste):
            self.flying.pop(self.draw.randrange(len(self.flying)))()
        else:
            self.draw.choice(stores).pop(0)()

    def is_touched(self, slot):
        """Say whether threads have used a slot since their last fence."""
        return any(slot in partition.touched for partition in self.partitions)

    def is_written(self, slot):
        """Say whether threads have written to a slot since their last fence."""
        return any(slot in partition.written for partition in self.partitions)
