"""What `headway map --on` keeps of a part whose lines fail. The rest needs a Ray."""

import pytest

from headway.cli.mapping_on_ray import kept_records

GOOD, BAD = b'{"line":1,"result":2}\n', b'{"line":1,"error":{"code":"x","message":""}}\n'
RECORDS = [GOOD, BAD, GOOD, BAD, GOOD]


@pytest.mark.parametrize(
    ("most_failures", "kept"), [(5, 5), (2, 5), (1, 4), (0, 2), (-1, 1), (-9, 1)]
)
def test_the_first_failure_beyond_is_the_last_record(most_failures: int, kept: int) -> None:
    assert kept_records(RECORDS, most_failures) == RECORDS[:kept]
