"""The Gaussian variables of a model that are integrated, and reasons why others are hyperparameters."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pymc as pm
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_gpep.argument_types import did_you_mean
from pymc_gpep.graphs.affine import Affinity, NotAffineError
from pymc_gpep.graphs.errors import StructureError, describe, listing, quoted
from pymc_gpep.latent.gp_latent import LatentGP, as_it_is, is_process, latents_among, refuse_common_variables
from pymc_gpep.latent.missing_responses import unobserved_responses
from pymc_gpep.likelihoods.likelihood import Reading
from pymc_gpep.recipes import Recipe, recipe, refuse_false_densities, why_no_recipes


@dataclass
class Gaussians:
    """The Gaussian variables of a model that may be integrated, in the order of the graph.

    Attributes
    ----------
    model : pm.Model
    processes : dict of TensorVariable to LatentGP
        Gaussian processes by their latent values.
    recipes : dict of TensorVariable to Recipe
        Other Gaussian variables that are not yet found to be in the way.
    kept : dict of TensorVariable to str
        Gaussian variables that stay hyperparameters, and why.
    missing : frozenset of TensorVariable
        Responses that are missing, which are neither.
    """

    model: pm.Model
    processes: dict[TensorVariable, LatentGP]
    recipes: dict[TensorVariable, Recipe]
    kept: dict[TensorVariable, str] = field(default_factory=dict)
    missing: frozenset[TensorVariable] = frozenset()

    @property
    def sources(self) -> frozenset[Variable]:
        """All of them."""
        return frozenset([*self.processes, *self.recipes])

    def keep(self, variables: Iterable[Variable], why: str) -> bool:
        """Leave variables among the hyperparameters; return whether any of them was to be integrated."""
        found = [v for v in self.recipes if v in set(variables)]
        for variable in found:
            del self.recipes[variable]
            self.kept[variable] = why
        return bool(found)

    def settle(
        self, read: Callable[[Collection[Variable]], Reading | None], observed: Sequence[TensorVariable]
    ) -> Reading:
        """Keep what is in the way until the argument of a likelihood is affine in all that is left.

        Parameters
        ----------
        read : callable
            Reads the likelihood, given the variables that may be integrated.
        observed : sequence of TensorVariable
            The observed variable, or several whose likelihoods are read as one.

        Returns
        -------
        Reading
            `processes` and `recipes` are then those that the argument is made of.

        Raises
        ------
        StructureError
            If nothing is left, or if it is open which of two variables to keep.
        """
        open_choices: list[tuple[str, str]] = []
        known = dict(self.recipes), dict(self.kept)
        while True:
            self._keep_what_others_need(observed)
            reading = read(self.sources)
            if reading is None and not self.sources:
                raise StructureError(self._nothing(observed, *observed))
            if reading is None:
                raise StructureError(
                    f"The argument of {quoted(observed)} cannot be told from its other parameters. "
                    f"{self._how_to_keep()}"
                )
            if reading.parameters is not None and self.keep(
                Affinity(self.sources).reached([reading.parameters]),
                f"a parameter of {quoted(observed)} besides its argument depends on it",
            ):
                continue
            try:
                used = self._behind(reading.argument)
            except NotAffineError as error:
                known = known if open_choices else (dict(self.recipes), dict(self.kept))
                open_choices += self._resolve(error, observed)
                continue
            self._refuse_nested(used, reading.argument, observed)
            self.recipes = {v: each for v, each in self.recipes.items() if v in used}
            self.processes = {v: each for v, each in self.processes.items() if v in used}
            if not used:
                raise StructureError(self._nothing(observed, reading.argument))
            if open_choices:
                self.recipes, self.kept = known
                self._refuse_open(open_choices, observed)
            return reading

    def _refuse_nested(
        self, used: Collection[Variable], argument: TensorVariable, observed: Sequence[TensorVariable]
    ) -> None:
        """Refuse Gaussian processes in covariances and scales, and two of them that are made of one variable."""
        processes = Affinity(frozenset(self.processes))
        for variable in used:
            own = variable in self.processes
            scales = (self.processes[variable].cov,) if own else self.recipes[variable].scales
            if found := processes.reached(scales):
                what = "covariance" if own else "scale"
                raise StructureError(
                    f"The prior of {variable.name!r} depends on latent values, {listing(found)}. Its {what} may depend "
                    f"on hyperparameters only. {as_it_is(self.model)}"
                )
        latents = [each for f, each in self.processes.items() if f in used]
        refuse_common_variables(latents)
        beside = {latent.free for latent in latents if latent.rotated}.intersection(
            ancestors([argument], blockers=self.sources)
        )
        if beside:
            raise StructureError(
                f"The argument of {quoted(observed)} depends on {listing(beside)} not only by latent values. "
                f"{as_it_is(self.model)}"
            )

    def _behind(self, argument: TensorVariable) -> set[Variable]:
        """Return all that an argument is made of, also by way of means."""
        affinity = Affinity(self.sources)
        found: set[Variable] = set()
        pending = [*affinity.behind(argument)]
        while pending:
            variable = pending.pop()
            if variable in found:
                continue
            found.add(variable)
            means = [self.processes[variable].mean] if variable in self.processes else self.recipes[variable].means
            for mean in means:
                pending += affinity.behind(mean)
        return found

    def _keep_what_others_need(self, observed: Sequence[TensorVariable]) -> None:
        """Keep variables on which anything depends besides the argument and means."""
        while any(self.keep(found, why) for found, why in self._needed(observed)):
            pass

    def _needed(self, observed: Sequence[TensorVariable]) -> Iterable[tuple[frozenset[Variable], str]]:
        """Yield variables that something other than the argument and means depends on, and what."""
        model = self.model
        affinity = Affinity(self.sources)
        for latent in self.processes.values():
            yield affinity.reached([latent.cov]), f"the covariance of {latent.f.name!r} depends on it"
        for variable, each in list(self.recipes.items()):
            yield affinity.reached(each.scales), f"the scale of {variable.name!r} depends on it"
        own = {*self.recipes, *(latent.free for latent in self.processes.values()), *observed, *self.missing}
        for variable in model.basic_RVs:
            if variable not in own:
                what = "is observed and" if variable in model.observed_RVs else "is no integrated variable and"
                yield affinity.reached(variable.owner.inputs), f"{variable.name!r} {what} depends on it"
        for potential in model.potentials:
            yield affinity.reached([potential]), f"the Potential {potential.name!r} depends on it"

    def _resolve(self, error: NotAffineError, observed: Sequence[TensorVariable]) -> list[tuple[str, str]]:
        """Keep the variables with the fewest numbers without which an operation is affine.

        If two sides have as few, the first one is kept, and the choice is open. Return the words and the name of each
        variable that was kept by such a choice.
        """
        sides = [side for side in error.sides if side.isdisjoint(self.processes)]
        sizes = [sum(self.recipes[v].size for v in side) for side in sides]
        operation = _words(error)
        names = listing(v for side in error.sides for v in side)
        if not sides:
            raise StructureError(
                f"The argument of {quoted(observed)} must be affine in latent values, but {operation} of {names} is "
                "not. Sums, products with what is known, selections and products of matrices are read. "
                f"{as_it_is(self.model)}"
            )
        least = sides[sizes.index(min(sizes))]
        others = [v for side in error.sides if side is not least for v in side]
        beside = f" with {listing(others)}" if others else ""
        self.keep(least, f"the argument contains {operation} of it{beside}")
        is_open = len(sides) > 1 and sizes.count(min(sizes)) > 1
        what = f"{operation} of the Gaussian variables {names}"
        return [(what, str(variable.name)) for variable in least] if is_open else []

    def _refuse_open(self, choices: Sequence[tuple[str, str]], observed: Sequence[TensorVariable]) -> None:
        """Refuse operations of variables that have as many numbers, and name all that have to be kept."""
        operations = " and ".join(dict.fromkeys(operation for operation, _ in choices))
        names = list(dict.fromkeys(name for _, name in choices))
        raise StructureError(
            f"The argument of {quoted(observed)} contains {operations}, of which one can be integrated. Name those "
            f"that are to stay hyperparameters: pm.fit(..., hyperparameters={names})."
        )

    def _how_to_keep(self) -> str:
        name = next(iter(self.recipes)).name if self.recipes else "beta"
        return f"Name those that are to stay hyperparameters: pm.fit(..., hyperparameters=[{name!r}])."

    def _nothing(self, observed: Sequence[TensorVariable], *arguments: TensorVariable) -> str:
        """Say why nothing is left to integrate."""
        behind = [v for v in ancestors(list(arguments)) if v in self.model.free_RVs]
        whys = [(v, self.kept[v]) for v in behind if v in self.kept]
        kept = "; ".join(f"{describe(v)} stays a hyperparameter, since {why}" for v, why in whys)
        sentences = [
            f"The argument of {quoted(observed)} depends on no Gaussian variable that can be integrated.",
            f"{kept}." if kept else "",
            why_no_recipes([v for v in behind if v not in self.kept], self.model),
            as_it_is(self.model),
        ]
        return " ".join(filter(None, sentences))


def gaussians_of(model: pm.Model, hyperparameters: Sequence[str] = ()) -> Gaussians:
    """Find the Gaussian variables of a model.

    Parameters
    ----------
    model : pm.Model
    hyperparameters : sequence of str
        Names of variables that are not to be integrated. Processes are named by their values, or by the standard
        normals that these are made of.

    Raises
    ------
    StructureError
        If there is no free variable of such a name, or if PyMC has a false density of a variable.
    """
    refuse_false_densities(model)
    latents = [
        each
        for each in latents_among([*model.free_RVs, *model.deterministics], model)
        if is_process(each) and model.rvs_to_transforms[each.free] is None
    ]
    missing = unobserved_responses(model)
    values = {latent.free: latent.f for latent in latents}
    free = {str(values.get(rv, rv).name): rv for rv in model.free_RVs if rv not in missing}
    named = free | {str(rv.name): rv for rv in free.values()}
    if unknown := [name for name in hyperparameters if name not in named]:
        raise StructureError(
            f"hyperparameters names {', '.join(map(repr, unknown))}, but the free variables of the model are "
            f"{', '.join(map(repr, free)) or 'none'}.{did_you_mean(unknown, named)}"
        )
    asked = {named[name] for name in hyperparameters}
    processes = {latent.f: latent for latent in latents if latent.free not in asked}
    own = {latent.free for latent in processes.values()}
    found = {rv: recipe(rv, model) for rv in model.free_RVs if rv not in own | missing}
    recipes = {rv: each for rv, each in found.items() if each is not None}
    gaussians = Gaussians(model, processes, recipes, missing=missing)
    gaussians.keep([rv for rv in recipes if rv in asked], "hyperparameters=[...] names it")
    return gaussians


def _words(error: NotAffineError) -> str:
    """Name an operation."""
    op = error.node.op
    match op:
        case Elemwise(scalar_op=Mul()):
            return "a product"
        case Elemwise():
            return f"the function {type(op.scalar_op).__name__.lower()!r}"
    return f"the operation {type(getattr(op, 'core_op', op)).__name__!r}"
