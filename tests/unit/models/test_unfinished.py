"""Folders in the making: processes that begin at once leave each other's alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.models.sources.unfinished import unfinished_folder


def test_no_folder_in_the_making_is_taken_for_one_that_was_left(tmp_path: Path) -> None:
    def make(number: int) -> bool:
        with unfinished_folder(tmp_path, "unfinished-") as folder:
            (folder / "file").write_text(str(number))
            return (folder / "file").read_text() == str(number)

    with ThreadPoolExecutor(8) as pool:  # locks are of open files: threads are as processes here
        assert all(pool.map(make, range(400)))
    assert not list(tmp_path.iterdir())
