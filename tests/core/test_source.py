"""The tree knows where everything is written."""

import pytest

from tallystick.core.diagnostics import Place, Problems
from tallystick.core.source import place_at
from tallystick.core.yaml_reader import read_yaml


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ((), (1, 1)),
        (("a",), (1, 1)),
        (("b", "c"), (3, 3)),
        (("b", "c", 1), (4, 9)),
        (("b", "c", 1, "k"), (4, 10)),
        (("b", "c", 9), (3, 3)),
        (("b", "no", "where"), (2, 1)),
        (("a", "x"), (1, 1)),
        (("b", "c", "text"), (3, 3)),
    ],
)
def test_a_path_leads_to_the_key_it_ends_with(
    path: tuple[str | int, ...], place: tuple[int, int]
) -> None:
    tree = read_yaml("a: 1\nb:\n  c:\n    [x, {k: v}]\n", Problems("f"))
    assert tree is not None
    assert place_at(tree, path) == Place(*place)
