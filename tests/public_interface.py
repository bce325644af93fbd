"""The public interface as text: `python -m tests.public_interface` writes it to `tests/reference/public_interface.txt`.

A line has a public name with its arguments and defaults, a method of `pm.fit` with its options and defaults, a class
of errors with its base, or the number of the file format. `tests/test_public_interface.py` compares the file with the
package.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pymc_gpep.approximations.methods import APPROXIMATIONS, FURTHER_METHODS, SPARSE_APPROXIMATIONS
from pymc_gpep.fits.saving import FORMAT
from pymc_gpep.hyper.hyper_methods import HYPER
from pymc_gpep.variational.inference import GPInference
from pymc_gpep.variational.plans.plans import PLANS
from tests.test_docstring_examples import PUBLIC

STORED = Path(__file__).parent / "reference" / "public_interface.txt"


def arguments(function: Any) -> str:
    """Return the arguments of a function with their defaults, without annotations."""
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))[1:-1]
    return re.sub(r"<(\S+) object at 0x\w+>", r"\1()", text)


def members(name: str, kind: type) -> Iterator[str]:
    """Yield a line for each public attribute of a class of this package."""
    for own in sorted(dir(kind)):
        if own.startswith("_"):
            continue
        home = next((base for base in kind.__mro__ if own in vars(base)), kind)
        if not home.__module__.startswith("pymc_gpep"):
            continue
        value = inspect.getattr_static(kind, own)
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function):
            taken = arguments(function) if isinstance(value, staticmethod) else arguments(function).partition(", ")[2]
            yield f"{name}.{own}({taken})"
        else:
            yield f"{name}.{own}"


def lines_of(module: ModuleType, name: str) -> Iterator[str]:
    """Yield the lines of a public name."""
    value, full = getattr(module, name), f"{module.__name__}.{name}"
    if not callable(value):
        yield full
        return
    bases = [base.__name__ for base in value.__mro__[1:-1]] if isinstance(value, type) else []
    if "Exception" in bases:
        yield f"{full}: {bases[0]}"
        return
    yield f"{full}({arguments(value)})"
    if isinstance(value, type):
        yield from members(full, value)


def options_of(argument: str, kinds: Iterable[Any]) -> Iterator[str]:
    """Yield a line for each kind of method with its options, by the argument of `pm.fit` that names the method."""
    for kind in kinds:
        yield f"pm.fit({', '.join(filter(None, [f'{argument}="{kind.name}"', arguments(kind)]))})"


def interface() -> list[str]:
    """Return the lines of the public interface, in alphabetical order."""
    found = {line for module, names in PUBLIC.items() for name in names for line in lines_of(module, name)}
    found |= {*options_of("method", (*APPROXIMATIONS, *SPARSE_APPROXIMATIONS, *FURTHER_METHODS))}
    found |= {*options_of("hyper", HYPER)}
    found.add(f"pm.fit({arguments(GPInference)}, {arguments(GPInference.fit).partition(', ')[2]})")
    found |= {f"pm.fit, by {plan.__name__}: {', '.join([*plan.takes, arguments(plan)])}" for plan in PLANS}
    return [*sorted(found), f"format of files: {FORMAT}"]


if __name__ == "__main__":
    STORED.write_text("\n".join(interface()) + "\n")
