"""The public interface changes only on purpose: its list is stored, and the changelog names each change."""

from tests.public_interface import STORED, interface


def test_public_interface_equals_the_stored_list():
    stored, found = set(STORED.read_text().splitlines()), set(interface())
    assert found == stored, (
        f"The public interface changed. New: {sorted(found - stored)}. Gone: {sorted(stored - found)}. "
        "Describe the change in CHANGELOG.md, then run `python -m tests.public_interface`."
    )
