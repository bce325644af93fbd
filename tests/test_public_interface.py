"""The public interface changes only on purpose: its list is stored, and the changelog names each change."""

from dataclasses import make_dataclass

import pytest

from tests import public_interface
from tests.public_interface import STORED, arguments, interface, options_of


def test_public_interface_equals_the_stored_list():
    stored, found = set(STORED.read_text().splitlines()), set(interface())
    assert found == stored, (
        f"The public interface changed. New: {sorted(found - stored)}. Gone: {sorted(stored - found)}. "
        "Describe the change in CHANGELOG.md, then run `python -m tests.public_interface`."
    )


def test_list_has_names_defaults_and_kinds_of_arguments():
    assert arguments(lambda path, minutes=10.0, *, gp=None, **options: 0) == "path, minutes=10.0, *, gp=None, **options"
    kind = make_dataclass("kind", [("depth", int, 8)])
    kind.name = "ep"
    assert [*options_of("method", [kind])] == ['pm.fit(method="ep", depth=8)']


def test_another_file_format_fails_with_the_name_of_the_changelog(monkeypatch):
    monkeypatch.setattr(public_interface, "FORMAT", public_interface.FORMAT + 1)
    with pytest.raises(AssertionError, match=r"New: \['format of files: 3'\].*Describe the change in CHANGELOG\.md"):
        test_public_interface_equals_the_stored_list()
