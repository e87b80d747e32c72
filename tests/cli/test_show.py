from maxsep.cli.show import events
from maxsep.lab.grid import Event
from maxsep.lab.spec import RunSpec, options


def told(capsys, kind, seconds=3.6, message=""):
    events()(Event(kind, RunSpec(), 2, 4, seconds, message))
    return capsys.readouterr().out.strip()


def test_a_line_for_each_event(capsys):
    name = RunSpec().name
    assert told(capsys, "start") == f"[2/4] {name}  (about 3.6 s)"
    assert told(capsys, "finished") == "[2/4] done in 3.6 s"
    assert told(capsys, "postponed") == f"[2/4] left for next time (needs about 3.6 s): {name}"
    assert told(capsys, "failed", message="RuntimeError: no") == "[2/4] FAILED: RuntimeError: no"
    assert told(capsys, "elsewhere") == f"[2/4] in the hands of another process: {name}"
    assert told(capsys, "skipped") == ""


def test_the_loss_is_told_where_it_is_no_cross_entropy(capsys):
    spec = RunSpec(loss="logit_adjusted", loss_options=options(tau=2.0))
    for kind in ("start", "postponed", "elsewhere"):
        events()(Event(kind, spec, 1, 1, 1.0))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(f"{spec.name} (logit_adjusted, tau=2.0)" in line for line in lines)
