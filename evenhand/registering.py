"""Makes transformers' Auto classes know evenhand's own architecture as soon as they are loaded, and loads nothing
itself."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["register_when_loaded"]

AUTO = "transformers.models.auto.modeling_auto"


def register_when_loaded() -> None:
    """Register now where the Auto classes are there already, else right after they are first imported."""
    if hasattr(sys.modules.get(AUTO), "AutoModelForCausalLM"):
        importlib.import_module("evenhand.modeling_crawd").register()
    elif not any(isinstance(finder, AfterAuto) for finder in sys.meta_path):
        sys.meta_path.insert(0, AfterAuto())


class AfterAuto(MetaPathFinder):
    """Finds the module of the Auto classes where it always was, and registers once it has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The ordinary place of that one module; of no other."""
        spec = PathFinder.find_spec(name, path, target) if name == AUTO else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module: Any) -> None:
            run(module)
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            try:
                register_when_loaded()
            except Exception as error:  # whoever imports transformers did not ask for evenhand's architecture
                warnings.warn(f"transformers will not know evenhand's architecture: {error}", stacklevel=2)

        spec.loader.exec_module = run_and_register
        return spec
