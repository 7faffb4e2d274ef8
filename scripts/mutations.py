"""Mutations of a module: small wrong changes that a test of it should notice.

In: a module's source, the name of one function in it or none. Out: `Mutant`s in the order of the
syntax tree, each with one change and the whole source that has it. Promises: every mutant parses;
what has no behaviour (docstrings, annotations, messages of errors, overloads) is not touched; the
same source gives the same mutants.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Methods x.f(...) of which x itself has the same shape.
ELIDED = ("abs", "clamp", "detach", "exp", "log", "sqrt", "square")
# On one device they change nothing that a test without another one could see.
KEPT_ARGUMENTS = ("device",)
SKIPPED = (ast.Raise, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        function: where it is, `<module>` outside of functions.
        change: what became what.
        statement: the statement with the change, its first line.
        source: the whole module with the change.
    """

    function: str
    change: str
    statement: str
    source: str

    @property
    def key(self) -> str:
        """What names it while the code around it stays: one line of Markdown."""
        return f"`{self.function}`: `{self.change}` in `{self.statement}`"


@dataclass(frozen=True)
class _Place:
    """Where a node stands: a field of its parent, or an element of that field."""

    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True)
class _Site:
    """A node with the statement and the function around it."""

    node: ast.AST
    place: _Place
    statement: ast.stmt
    function: str

    @property
    def is_condition(self) -> bool:
        """It decides an `if` or a `while`."""
        return isinstance(self.place.parent, ast.If | ast.While) and self.place.field == "test"


def mutants_of(source: str, function: str | None = None) -> list[Mutant]:
    """All mutants of a module, or of one of its functions. Raises ValueError if it lacks it."""
    tree = ast.parse(source)
    found: list[Mutant] = []
    sites = [s for s in _sites(tree.body, "<module>") if function in (None, s.function)]
    if not sites:
        raise ValueError(f"nothing to change in {function or 'the module'}")
    for site in sites:
        changes = list(_changes(site.node))
        if site.is_condition and not changes and isinstance(site.node, ast.expr):
            changes = [(site.node, ast.UnaryOp(ast.Not(), site.node))]
        for old, new in changes:
            site.place.put(new)
            text, statement = ast.unparse(tree), _first_line(site.statement)
            site.place.put(site.node)
            found.append(Mutant(site.function, f"{_line(old)} -> {_line(new)}", statement, text))
    return found


def _sites(statements: list[ast.stmt], function: str) -> Iterator[_Site]:
    for statement in statements:
        if isinstance(statement, SKIPPED) or _is_overload(statement):
            continue
        inside = function
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            inside = statement.name if function == "<module>" else f"{function}.{statement.name}"
        yield from _inside(statement, statement, inside)


def _inside(node: ast.AST, statement: ast.stmt, function: str) -> Iterator[_Site]:
    """Sites below a node, in the order of the source; statements begin anew."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _sites(value, function)
            continue
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.AST):
                yield _Site(child, _Place(node, field, index), statement, function)
                yield from _inside(child, statement, function)


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(what is shown as old, the node with the change)."""
    match node:
        case ast.Compare(ops=operators):
            for i, operator in enumerate(operators):
                for other in COMPARISONS[type(operator)]:
                    yield node, _with(node, ops=[*operators[:i], other(), *operators[i + 1 :]])
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            yield node, _with(node, op=OPERATORS[type(operator)]())
        case ast.BoolOp(op=operator):
            yield node, _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield node, operand
        case ast.Constant(value=bool(value)):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield node, ast.Constant(value + 1)
            yield node, ast.Constant(value - 1)
        case ast.IfExp(body=body, orelse=orelse):
            yield node, body
            yield node, orelse
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, first, second]):
            yield node, _with(node, args=[condition, second, first])
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in ELIDED:
            yield node, value
    if isinstance(node, ast.Call):
        for i, keyword in enumerate(node.keywords):
            if keyword.arg not in (None, *KEPT_ARGUMENTS):
                yield node, _with(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _is_overload(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef) and any(
        isinstance(d, ast.Name) and d.id == "overload" for d in statement.decorator_list
    )


def _first_line(statement: ast.stmt) -> str:
    """Without what surrounds it and stands in it; of a function no annotations."""
    if isinstance(statement, ast.FunctionDef):
        arguments = copy.deepcopy(statement.args)
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        return f"def {statement.name}({ast.unparse(arguments)})"
    return ast.unparse(statement).splitlines()[0]


def _line(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
