import io

from maxsep.lab.engine.progress import Bar, Lines, Progress, choose_progress
from maxsep.lab.spec import RunSpec

SPEC = RunSpec(epochs=2)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def play(progress):
    with progress:
        progress.start(2, 4)
        for epoch in range(2):
            progress.step()
            progress.epoch({"epoch": epoch, "train_loss": 0.5} | ({"top1": 0.25} if epoch else {}))
        progress.note("done")


def test_a_log_gets_plain_lines_of_evaluated_epochs():
    stream = io.StringIO()
    progress = choose_progress(SPEC, True, stream)
    assert type(progress) is Lines
    play(progress)
    assert stream.getvalue().splitlines() == [
        f"{SPEC.name}: resumed at step 2 of 4",
        f"{SPEC.name}: epoch 2/2, loss 0.500, top-1 25.00 %",
        f"{SPEC.name}: done",
    ]


def test_a_new_run_is_announced():
    stream = io.StringIO()
    choose_progress(SPEC, True, stream).start(0, 4)
    assert stream.getvalue() == f"{SPEC.name}: training, 4 steps\n"


def test_a_loss_of_its_own_is_named_in_every_line():
    stream, spec = io.StringIO(), SPEC.replace(loss="balanced_softmax")
    choose_progress(spec, True, stream).start(0, 4)
    assert stream.getvalue() == f"{spec.name} (balanced_softmax): training, 4 steps\n"


def test_a_download_is_seen(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    with choose_progress(SPEC, True, stream) as progress:
        progress.download(17_000_000, 170_498_071)
        progress.download(170_498_071, 170_498_071)
    assert "data: 170 of 170 MB" in stream.getvalue()


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    progress = choose_progress(SPEC, True, stream)
    assert type(progress) is Bar
    play(progress)
    assert "4/4" in stream.getvalue()
    assert "top-1 25.00 %" in stream.getvalue()
    assert "done" in stream.getvalue()


def test_no_progress_is_silent(capsys):
    progress = choose_progress(SPEC, False)
    assert type(progress) is Progress
    play(progress)
    assert capsys.readouterr() == ("", "")
