from headway.lab.columns import aligned


def test_names_are_to_the_left_and_figures_to_the_right() -> None:
    rows = [["model", "ms", "why"], ["a", "1.5", "idle"], ["longer", "12", "full"]]
    assert aligned(rows, (0, -1)) == ["model    ms  why", "a       1.5  idle", "longer   12  full"]
    assert aligned(rows)[1] == "a       1.5  idle"
