"""Restores tables of the package after a test that registers entries."""

from importlib import import_module

import pytest

from pymc_gpep import registry

__all__ = ["restore_tables"]


def restore_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the current entries of all tables at the end of a test."""
    for table, module in registry.TABLES.items():
        import_module(f"pymc_gpep.{module}")
        monkeypatch.setattr(registry._made[table], "_entries", tuple(registry._made[table]))
