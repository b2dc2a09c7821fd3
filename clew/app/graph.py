"""`clew graph`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from clew.app.flags import PyFiles, ready_to_load
from clew.app.target import File, Json, Target, near
from clew.app.terminal import explained, print_json, results
from clew.pipeline.graph import Graph, Link, OperatorSpec

Mermaid = Annotated[bool, typer.Option("--mermaid", help="Write a Mermaid flowchart.", show_default=False)]


def graph(file: File, py_files: PyFiles = None, mermaid: Mermaid = False, as_json: Json = False) -> None:
    """Show the operators of a pipeline and how they are connected. Starts nothing."""
    with explained():
        ready_to_load(py_files)
        shown = Target.parse(file).graph()
        if as_json:
            print_json(_as_json(shown))
        elif mermaid:
            typer.echo(_as_mermaid(shown))
        else:
            results().print(_as_tree(shown))


def kind(spec: OperatorSpec) -> str:
    """Name what an operator is."""
    if spec.is_source:
        return "source"
    if spec.is_sink:
        return "sink"
    return "general operator" if spec.general is not None else "operator"


def _details(spec: OperatorSpec) -> str:
    """Say what an operator does, in a few words."""
    if spec.source is not None:
        return spec.source.describe()
    words = [f"{f.name}: {f.window}" if len(spec.functions) > 1 else f"{f.window}" for f in spec.functions]
    if spec.general is not None:
        words = [type(spec.general).__name__]
    words += [f"{f.style}" for f in spec.functions[:1] if f.style != "general"]
    words += [f"reads {connection.describe()}" for connection in spec.reads.values()]
    words += [f"writes {sink.describe()}" for sink in spec.sinks.values()]
    return ", ".join(words)


def _as_tree(graph: Graph) -> Tree:
    """Draw every operator once, below the first that sends to it; other connections refer to it."""
    tree = Tree(Text(f"pipeline {graph.name}", style="bold"))
    drawn: set[str] = set()
    for spec in graph.operators.values():
        if spec.is_source:
            _draw(graph, spec, tree, "", drawn)
    return tree


def _draw(graph: Graph, spec: OperatorSpec, above: Tree, via: str, drawn: set[str]) -> None:
    label = Text(via, style="dim").append(spec.name, style="bold not dim")
    if spec.name in drawn:
        above.add(label.append(" (see above)", style="not bold dim"))
        return
    drawn.add(spec.name)
    label.append(f"  {kind(spec)}  {_details(spec)}", style="not bold not dim")
    if spec.group != spec.name:
        label.append(f"  group {spec.group}", style="not bold")
    label.append(f"  {near(spec.location)}", style="not bold dim")
    branch = above.add(label)
    for link in graph.links:
        if link.sender.operator == spec.name:
            _draw(graph, graph.operators[link.receiver.operator], branch, _via(link), drawn)


def _via(link: Link) -> str:
    """Name a connection's ports where they are not the only ones."""
    ports = _ports(link)
    return f"{ports}: " if ports else ""


def _ports(link: Link) -> str:
    sender, receiver = link.sender.name, link.receiver.name
    if receiver != "in":
        return f"{sender} -> {receiver}"
    return sender if sender != "out" else ""


_SHAPES = {"source": ("([", "])"), "sink": ("[(", ")]"), "general operator": ("[[", "]]"), "operator": ("[", "]")}


def _as_mermaid(graph: Graph) -> str:
    # Names of operators may be words of Mermaid's own ("end"), so nodes are numbered.
    nodes = {name: f"n{index}" for index, name in enumerate(graph.operators)}
    lines = ["flowchart LR"]
    for spec in graph.operators.values():
        left, right = _SHAPES[kind(spec)]
        lines.append(f'    {nodes[spec.name]}{left}"{spec.name}"{right}')
    for link in graph.links:
        label = f"|{ports.replace('->', 'to')}|" if (ports := _ports(link)) else ""
        lines.append(f"    {nodes[link.sender.operator]} -->{label} {nodes[link.receiver.operator]}")
    return "\n".join(lines)


def _as_json(graph: Graph) -> Mapping[str, Any]:
    return {
        "pipeline": graph.name,
        "operators": [_operator_as_json(spec) for spec in graph.operators.values()],
        "connections": [{"from": str(link.sender), "to": str(link.receiver)} for link in graph.links],
        "groups": {group: list(operators) for group, operators in graph.groups.items()},
    }


def _operator_as_json(spec: OperatorSpec) -> Mapping[str, Any]:
    return {
        "operator": spec.name,
        "kind": kind(spec),
        "group": spec.group,
        "location": spec.location,
        "inputs": {port: str(sender) for port, sender in spec.inputs.items()},
        "outputs": list(spec.outputs),
        "functions": [
            {"name": f.name, "style": f.style, "window": None if f.style == "general" else str(f.window)}
            for f in spec.functions
        ],
        "source": spec.source.describe() if spec.source is not None else None,
        "reads": {name: connection.describe() for name, connection in spec.reads.items()},
        "writes": {name: sink.describe() for name, sink in spec.sinks.items()},
    }
