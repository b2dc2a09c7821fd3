"""Every error message of the package, by where it is made, and a record of those that tests have made it say.

A message is made where an error is: where its class is called, or a function that returns one and is given the words.
`install` has the package loaded with a mark around each of these places; the first time that a process passes one it
says so, in the file that figures are counted in. Processes that tests start inherit this, Spark's Python workers too:
by `census/sitecustomize.py`, which Python imports when it starts. What is loaded was compiled before, so it costs a
process nothing but a call where an error is made.
"""

import builtins
import json
import marshal
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast

#: The variable that names the file of figures, and what a message is counted as there.
PLACE, MESSAGE = "CLEW_TALLY", "error message produced"
PACKAGE = Path(__file__).parents[1] / "clew"
CENSUS = Path(__file__).parent / "census"
_KEPT = Path(__file__).parent / "__pycache__" / "messages"
_MARK = "__clew_message__"
#: What is raised to get somewhere, or says what cannot happen, and is read by nobody.
_SILENT = {
    "AssertionError", "CrashInjected", "Exit", "_Stopped", "StopIteration", "NotImplementedError", "SystemExit",
}  # fmt: skip
#: Functions that are given the words of an error, and keep it.
_TELLERS = {"_wrong"}


@dataclass(frozen=True, order=True)
class Site:
    """A place where an error message is made."""

    file: str
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}"


@cache
def sites() -> tuple[Site, ...]:
    """Return every place of the package where an error message is made."""
    import ast

    found = {}
    for path, tree in _trees().items():
        for call in _calls(tree):
            site = Site(str(path.relative_to(PACKAGE.parent)), call.lineno, ast.unparse(call))
            found[site.name] = site
    return tuple(sorted(found.values()))


def install() -> None:
    """Record what is said from now on, by modules of the package that are yet to be imported, and by processes."""
    _keep()
    follow()
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CENSUS), *([others] if others else [])])


def follow() -> None:
    """Load the package as `install` has kept it."""
    setattr(builtins, _MARK, _make)
    sys.meta_path.insert(0, _Finder())


_said: set[str] = set()


def _make(site: str) -> None:
    """Count a message that is about to be made, once in a process."""
    if os.environ.get(PLACE) and site not in _said:
        _said.add(site)
        note([f"{MESSAGE}: {site}", 1])


def note(line: list[Any]) -> None:
    """Write a line where this session counts: each process to a file of its own, which stays small.

    Some tests let a process write no more than so many bytes to a file, and this one must not be what fails.
    """
    place = os.environ.get(PLACE)
    if place:
        with open(os.path.join(place, str(os.getpid())), "ab", buffering=0) as out:
            out.write(json.dumps(line).encode() + b"\n")


class _Finder:
    """Finds modules of this package, and has them loaded with marks."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE.name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and Path(spec.origin).is_relative_to(PACKAGE):
            spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    """Loads a module as it was kept; one that has changed since as it is."""

    def get_code(self, fullname: str) -> Any:
        code = _kept(Path(self.path))
        return super().get_code(fullname) if code is None else code


def _kept(path: Path) -> Any:
    try:
        stamp, code = marshal.loads(_place(path).read_bytes())
    except (OSError, EOFError, ValueError):
        return None
    return code if stamp == _stamp(path) else None


def _keep() -> None:
    """Compile, with marks, what has changed since it was last kept."""
    changed = [path for path in _files() if _kept(path) is None]
    if not changed:
        return
    trees = _trees()
    _KEPT.mkdir(parents=True, exist_ok=True)
    for path in changed:
        code = compile(_marked(path, trees[path]), str(path), "exec", dont_inherit=True)
        own = _place(path).with_suffix(f".{os.getpid()}")
        own.write_bytes(marshal.dumps((_stamp(path), code)))
        own.replace(_place(path))
    # They have marks now.
    _trees.cache_clear()


def _place(path: Path) -> Path:
    return _KEPT / f"{'.'.join(path.relative_to(PACKAGE).parts)}c"


def _stamp(path: Path) -> tuple[Any, ...]:
    """Say what something was compiled from, and by what."""
    states = (path.stat(), Path(__file__).stat())
    return (sys.version, *(value for state in states for value in (state.st_mtime_ns, state.st_size)))


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def _trees() -> Mapping[Path, "ast.Module"]:
    import ast

    return {path: ast.parse(path.read_text()) for path in _files()}


def _marked(path: Path, tree: "ast.Module") -> "ast.Module":
    import ast

    file = path.relative_to(PACKAGE.parent)
    wanted = {id(call) for call in _calls(tree)}

    class Marker(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> ast.expr:
            self.generic_visit(call)
            if id(call) not in wanted:
                return call
            mark = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(f"{file}:{call.lineno}")], [])
            # The mark gives None; and the call need not return, for it may raise by itself.
            return ast.fix_missing_locations(ast.copy_location(ast.BoolOp(ast.Or(), [mark, call]), call))

    return Marker().visit(tree)  # type: ignore[no-any-return]


def _calls(tree: "ast.Module") -> Iterator["ast.Call"]:
    """Yield the calls that make a message; where a function is given the words, not the one that it passes them to."""
    import ast

    classes, makers = _errors(), _makers()
    passing = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name in makers
        for node in ast.walk(function)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (call.args or call.keywords):
            inner = [node for node in ast.walk(call) if node is not call]
            words = any(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in inner)
            made = any(isinstance(node, ast.Call) and _called(node.func) in classes for node in inner)
            is_error = _called(call.func) in classes and (words or id(call) not in passing)
            is_told = _called(call.func) in makers and words and not made
            if is_error or is_told:
                yield call


def _called(function: "ast.expr") -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


@cache
def _errors() -> frozenset[str]:
    """Return the names of all classes of errors: Python's, and those of the package that are made of them."""
    import ast

    built_in = {name for name, thing in vars(builtins).items() if _is_error(thing)}
    known, found = set[str](), {*built_in, "BadParameter"}
    classes = [node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while found - known:
        known |= found
        found = {node.name for node in classes if known & {_called(base) for base in node.bases}}
    return frozenset(known - _SILENT)


@cache
def _makers() -> frozenset[str]:
    """Return the names of functions that return an error, raise it, or are told one."""
    import ast

    functions = [node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    given = {*_errors(), "NoReturn"}
    named = {node.name for node in functions if node.returns is not None and _called(node.returns) in given}
    return frozenset(named | _TELLERS)


def _is_error(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)
