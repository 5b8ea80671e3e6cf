"""A draft as text."""

from specdec.commands.tree_text import tree_text
from specdec.tree import Draft

NAMES = {1: " the", 2: " a", 3: " dog", 4: " cat", 5: " sat", 6: "\n"}


def test_the_accepted_path_is_marked():
    draft = Draft((1, 2, 3, 4, 6), (-1, -1, 0, 0, 3))
    assert tree_text(draft, (0, 3), 5, NAMES.get).splitlines() == [
        "root",
        '├─* " the"',
        '│  ├─  " dog"',
        '│  └─* " cat"',
        '│     └─  "\\n"',
        '└─  " a"',
        '=>  " sat"',
    ]


def test_nothing_drafted_is_the_root_alone():
    assert tree_text(Draft(), ()) == "root"
    assert tree_text(Draft(), (), 7) == 'root\n=>  "7"'
