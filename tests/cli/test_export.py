def test_bad_input_is_one_clear_line(refuse_in_one_line):
    assert "there is no folder nowhere" in refuse_in_one_line("export", "nowhere", "--out", "model")
