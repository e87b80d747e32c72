def test_bad_input_is_one_clear_line(refuse_in_one_line):
    assert "nowhere holds no finished run" in refuse_in_one_line("export", "nowhere", "--out", "model")
