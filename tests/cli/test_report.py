def test_report_of_a_run(call, run, tmp_path):
    page = call("report", run["run"], "--out", tmp_path, "--title", "Mine").strip()
    assert "Mine" in (tmp_path / "report.html").read_text()
    assert page.endswith("report.html")


def test_bad_input_is_one_clear_line(refuse_in_one_line):
    assert "nowhere is not a folder" in refuse_in_one_line("report", "nowhere")
