"""Launches that come again are recorded: when, how many, and what happens where that fails. On CUDA: tests/cuda."""

import gc
import threading
import weakref

import pytest
import torch

from maxsep.ops import recording
from maxsep.ops.recording import Recordings, repeated


class Recorder:
    """Stands for a GPU: tells recordings from launches."""

    def __init__(self, problem=None):
        self.problem, self.log, self.prepared = problem, [], []
        self.recordings = Recordings(self)

    def prepare(self, stream):
        self.prepared.append(stream)

    def make_room(self):
        self.log.append("made room")

    def record(self, launches, stream):
        if self.problem:
            raise self.problem
        self.log.append(("recorded", stream))
        launches()
        what = self.log.pop()
        return lambda: self.log.append(("replayed", what))

    def run(self, key, stream="stream"):
        """Run what writes its key, and return what happened."""
        self.log.clear()
        self.recordings.run(key, lambda: self.log.append(key), stream)
        return list(self.log)


def test_the_second_run_is_recorded_and_all_later_ones_replay_it():
    recorder = Recorder()
    assert recorder.run("a") == ["a"]
    assert recorder.run("b") == ["b"]
    assert recorder.run("a") == [("recorded", "stream"), ("replayed", "a")]
    assert recorder.run("a") == [("replayed", "a")]
    assert recorder.recordings.count == 1
    assert recorder.run("b") == [("recorded", "stream"), ("replayed", "b")]
    assert recorder.recordings.count == 2
    assert recorder.run("a") == [("replayed", "a")]


def test_there_are_a_few_recordings_and_one_that_is_used_keeps_its_place(monkeypatch):
    monkeypatch.setattr(recording, "most", lambda: 2)
    monkeypatch.setattr(recording, "PATIENCE", 10)
    recorder = Recorder()
    for key in "abab":
        recorder.run(key)
    assert [recorder.run("c") for _ in range(3)] == [["c"]] * 3  # both places were used a moment ago
    for _ in range(10):
        recorder.run("b")
    assert recorder.run("c") == [("recorded", "stream"), ("replayed", "c")]  # in the place of a
    assert recorder.run("b") == [("replayed", "b")]
    assert recorder.run("a") == ["a"]


def test_what_came_once_is_remembered_for_a_while(monkeypatch):
    monkeypatch.setattr(recording, "REMEMBERED", 3)
    recorder = Recorder()
    for key in "abcd":
        recorder.run(key)
    assert recorder.run("a") == ["a"]  # forgotten, and remembered in the place of b
    assert recorder.run("d") == [("recorded", "stream"), ("replayed", "d")]


def test_where_recording_fails_launches_go_on_and_one_warning_says_why():
    recorder = Recorder(RuntimeError("no graphs here"))
    assert recorder.run("a") == ["a"]
    with pytest.warns(RuntimeWarning, match=r"could not be recorded \(no graphs here\).*MAXSEP_RECORDINGS=0"):
        assert recorder.run("a") == ["a"]
    assert recorder.run("a") == ["a"]  # warnings are errors here
    recorder.run("b")
    assert recorder.run("b") == ["b"]


def test_an_error_of_another_kind_is_not_hidden():
    recorder = Recorder(KeyError("a bug"))
    recorder.run("a")
    with pytest.raises(KeyError, match="a bug"):
        recorder.run("a")
    recorder.problem = None
    assert recorder.run("a") == [("recorded", "stream"), ("replayed", "a")]  # and the lock is free


class Keeping:
    """Replays by launching, and counts what it made."""

    count = 0

    def prepare(self, stream):
        pass

    def make_room(self):
        pass

    def record(self, launches, stream):
        self.count += 1
        return launches


def test_memory_is_taken_at_the_first_run():
    recorder = Recorder()
    recorder.run("a", "one stream")
    assert recorder.prepared == ["one stream"]
    recorder.run("b", "another")
    assert recorder.prepared == ["one stream", "another"]


def test_too_little_memory_is_tried_again_a_few_times():
    recorder = Recorder(torch.OutOfMemoryError("32 MiB"))
    recorder.run("a")
    assert recorder.run("a") == ["made room", "a"]
    recorder.problem = None
    assert recorder.run("a") == [("recorded", "stream"), ("replayed", "a")]
    recorder.problem = torch.OutOfMemoryError("32 MiB")
    recorder.run("b")
    assert recorder.run("b") == ["made room", "b"]
    with pytest.warns(RuntimeWarning, match="32 MiB"):
        assert recorder.run("b") == ["made room", "b"]
    assert recorder.run("b") == ["b"]
    assert recorder.run("a") == [("replayed", "a")]  # what there is stays


def test_too_little_memory_at_the_first_run():
    class Full(Keeping):
        def prepare(self, stream):
            raise torch.OutOfMemoryError("32 MiB")

    runs, recordings = [], Recordings(Full())
    recordings.run("key", lambda: runs.append(1), None)
    assert not recordings._seen  # it would want the memory the next time too
    assert len(runs) == 1


def test_a_cycle_of_any_length_is_not_recorded_again_and_again(monkeypatch):
    for length in (5, 9, 40, 64, 65, 100):
        made = Keeping()
        recordings = Recordings(made)
        for _ in range(6):
            for key in range(length):
                recordings.run(key, lambda: None, None)
        assert made.count <= 8, length


def test_threads_share_recordings():
    lock, count = threading.Lock(), 0
    made = Keeping()

    def launches():
        nonlocal count
        with lock:
            count += 1

    recordings = Recordings(made)
    threads = [
        threading.Thread(target=lambda: [recordings.run("key", launches, None) for _ in range(50)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 400
    assert made.count == 1


def test_tensors_of_a_cpu_are_launched_for_each_time(monkeypatch):
    monkeypatch.setattr(recording, "recordings_of", None)
    runs = []
    for _ in range(3):
        repeated(lambda: runs.append(1), (torch.zeros(2), None), 3)
    assert len(runs) == 3


class Stream:
    device, cuda_stream = torch.device("cuda", 0), 7


class Tensor:
    """Stands for a CUDA tensor."""

    is_cuda, device, dtype, shape = True, torch.device("cuda", 0), torch.float32, (2, 3)

    def __init__(self, address, strides=(3, 1)):
        self.data_ptr, self.stride = lambda: address, lambda: strides


@pytest.fixture
def recorder(monkeypatch):
    """What records for tensors that pass for those of a GPU."""
    recorder = Recorder()
    monkeypatch.setattr(recording, "recordings_of", lambda device: recorder.recordings)
    monkeypatch.setattr(recording, "_is_known", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    return recorder


def test_a_recording_is_found_by_addresses_shapes_numbers_settings_and_stream(recorder, monkeypatch):
    def happened(*given):
        recorder.log.clear()
        repeated(lambda: recorder.log.append("launched"), *given)
        return recorder.log == ["launched"]

    assert happened((Tensor(16), None), 0.5)
    assert not happened((Tensor(16), None), 0.5)  # recorded, replayed
    assert happened((Tensor(32), None), 0.5)
    assert happened((Tensor(16, (1, 2)), None), 0.5)
    assert happened((Tensor(16), Tensor(16)), 0.5)
    assert happened((Tensor(16), None), 0.25)
    monkeypatch.setattr(Stream, "cuda_stream", 8)
    assert happened((Tensor(16), None), 0.5)
    monkeypatch.setattr(Stream, "cuda_stream", 7)
    assert not happened((Tensor(16), None), 0.5)
    monkeypatch.setattr(recording, "_settings", lambda: ("others",))
    assert happened((Tensor(16), None), 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allow_bf16_reduced_precision_reduction", False),
        ("allow_fp16_reduced_precision_reduction", False),
        ("allow_fp16_accumulation", True),
        ("fp32_precision", "tf32"),
    ],
)
def test_settings_of_torch_are_part_of_what_a_recording_is_found_by(name, value):
    products, before = torch.backends.cuda.matmul, recording._settings()
    was = getattr(products, name)
    setattr(products, name, value)
    try:
        assert recording._settings() != before
    finally:
        setattr(products, name, was)
    assert recording._settings() == before


def test_the_older_way_to_choose_a_precision_counts_as_well():
    before = recording._settings()
    torch.set_float32_matmul_precision("high")
    try:
        assert recording._settings() != before
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("hip", "allocator"), [(None, "cudaMallocAsync"), ("6.4", "native")])
def test_graphs_are_for_an_allocator_that_gives_them_memory_of_their_own(monkeypatch, hip, allocator):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: allocator)
    monkeypatch.setattr(torch.version, "hip", hip)
    recording._is_known.cache_clear()
    try:
        assert not recording._is_known()
    finally:
        recording._is_known.cache_clear()


def test_what_compilers_call_is_launched(recorder):
    runs = []
    for _ in range(3):
        with recording.launched():
            repeated(lambda: runs.append(1), (Tensor(16),))
    assert len(runs) == 3
    assert not recorder.recordings._seen
    repeated(lambda: runs.append(1), (Tensor(16),))
    assert recorder.recordings._seen


def test_operators_record_nothing_and_the_short_way_may(monkeypatch):
    from maxsep.ops.fused import in_chunks, row_losses

    told = []
    monkeypatch.setattr(in_chunks, "repeated", lambda run, *given: (told.append(recording._may_record()), run()))
    monkeypatch.setattr(recording, "_is_known", lambda: True)
    x, weight = torch.randn(9, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)

    def loss(x, weight):
        return row_losses(x, weight, torch.zeros(9, dtype=torch.int64), form="triton")[0].sum()

    loss(x, weight).backward()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(x, weight).backward()
    assert told == [True, False]


@pytest.mark.parametrize(("given", "number"), [(None, 8), ("0", 0), ("3", 3)])
def test_how_many_there_are_can_be_set(monkeypatch, given, number):
    monkeypatch.delenv(recording.SETTING, raising=False)
    if given is not None:
        monkeypatch.setenv(recording.SETTING, given)
    recording.most.cache_clear()
    try:
        assert recording.most() == number
    finally:
        recording.most.cache_clear()


@pytest.mark.parametrize("given", ["", "-1", "many", "1.5"])
def test_a_number_of_recordings_that_is_none(monkeypatch, given):
    monkeypatch.setenv(recording.SETTING, given)
    recording.most.cache_clear()
    with pytest.raises(ValueError, match=f"MAXSEP_RECORDINGS must be .* got '{given}'. Set it to 0 for none"):
        recording.most()


def test_none_if_none_are_wanted(monkeypatch):
    monkeypatch.setattr(recording, "recordings_of", None)
    monkeypatch.setattr(recording, "most", lambda: 0)
    runs = []
    for _ in range(3):
        repeated(lambda: runs.append(1), (Tensor(16),))
    assert len(runs) == 3


def test_inside_a_recording_of_the_caller_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(recording, "recordings_of", None)
    monkeypatch.setattr(recording, "_is_known", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    runs = []
    for _ in range(3):
        repeated(lambda: runs.append(1), (Tensor(16),))
    assert len(runs) == 3


def test_what_was_run_is_not_kept_alive():
    class Forgetting(Keeping):
        def record(self, launches, stream):
            return lambda: None

    recordings = Recordings(Forgetting())

    class Launches:
        def __call__(self):
            pass

    launches = Launches()
    gone = weakref.ref(launches)
    for _ in range(3):
        recordings.run("key", launches, None)
    del launches
    gc.collect()
    assert gone() is None
