"""A syntax tree -> the calls that a script makes, in their order, with the values they are given.

Statements are followed as far as their text says what happens: names that are assigned, functions
of the script itself where they are called, conditions whose value is a constant. Nothing is run.

Left out on purpose: the bodies of classes but for their fields, handlers of errors, and every turn
of a loop but the first. What depends on a condition that nobody knows is taken from the branch that
sets it, with a remark; of two constants neither is taken.
"""

from ast import (
    AST,
    AnnAssign,
    Assign,
    AsyncFor,
    AsyncFunctionDef,
    AsyncWith,
    Attribute,
    AugAssign,
    BinOp,
    BoolOp,
    Call,
    ClassDef,
    Compare,
    Constant,
    Dict,
    Expr,
    For,
    FormattedValue,
    FunctionDef,
    GeneratorExp,
    If,
    IfExp,
    Import,
    ImportFrom,
    JoinedStr,
    Lambda,
    List,
    ListComp,
    Module,
    Name,
    Not,
    Or,
    Return,
    Slice,
    Starred,
    Subscript,
    Try,
    Tuple,
    UnaryOp,
    USub,
    While,
    With,
    copy_location,
    expr,
    stmt,
)
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from runner.importers.foreign_config import Remark
from runner.importers.python_scope import (
    CONDITION_REMARK,
    LOOP_REMARK,
    Doubt,
    Scope,
    Script,
    differing_names,
    field_default,
    merge_branches,
    names_of,
)
from runner.importers.python_values import (
    KNOWN_FUNCTIONS,
    CallValue,
    ClassValue,
    Code,
    Function,
    NameValue,
    Value,
    as_code,
    calculate,
    is_constant,
    shown,
)

# Limits of what is followed, so that no script makes its import long. A script that trains stays
# far below them; what lies beyond is code, as if nobody had called it.
MAX_DEPTH = 12  # of functions of the script that call each other
MAX_FOLLOWED = 500  # calls of functions of the script
MAX_CALLS = 20_000
MAIN = "__main__"


class Reader:
    """Follows the statements of a script."""

    def __init__(self) -> None:
        self.script = Script()
        self.scopes: list[Scope] = [{"__name__": MAIN}]
        # What the functions that are being followed have returned so far.
        self.returned: list[list[Value]] = []
        self.functions_followed = 0

    # --- Names ---

    def find(self, name: str, line: int) -> Value:
        """The value of a name; a name of a library where the script has not set it."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return NameValue(name, line)

    def assign(self, target: expr, value: Value) -> None:
        """Give a value to a name, to several, or to a field of what a name holds."""
        if isinstance(target, Name):
            self.scopes[-1][target.id] = value
        elif isinstance(target, Tuple | List):
            self._assign_each(target, value)
        elif isinstance(target, Attribute) and isinstance(target.value, Name):
            owner = self.find(target.value.id, target.lineno)
            if isinstance(owner, CallValue):
                keywords = {**owner.keywords, target.attr: value}
                self.scopes[-1][target.value.id] = replace(owner, keywords=keywords)
        elif isinstance(target, Subscript):
            owner = self.evaluate(target.value)
            key = self.evaluate(target.slice)
            if isinstance(owner, dict) and isinstance(key, str):
                owner[key] = value

    def _assign_each(self, target: Tuple | List, value: Value) -> None:
        """Give each of several names its part of a value."""
        is_listed = isinstance(value, list | tuple) and len(value) == len(target.elts)
        for index, name in enumerate(target.elts):
            part: Value = as_code(target)
            if is_listed and isinstance(value, list | tuple):
                part = value[index]
            elif isinstance(value, CallValue):
                part = CallValue(
                    name="[]",
                    text=value.text,
                    line=value.line,
                    receiver=value,
                    positional=(index,),
                )
            self.assign(name, part)

    # --- Statements ---

    def follow(self, statements: Sequence[stmt]) -> bool:
        """Follow statements in their order; True where a function has returned."""
        for statement in statements:
            if self._follow_one(statement):
                return True
        return False

    def _follow_one(self, statement: stmt) -> bool:
        """Follow one statement; True where the function that it is in has returned."""
        match statement:
            case Return():
                value = self.evaluate(statement.value) if statement.value else None
                if self.returned:
                    self.returned[-1].append(value)
                return True
            case If():
                return self.follow_condition(statement)
            case For() | AsyncFor() | While():
                return self.follow_loop(statement)
            case With() | AsyncWith():
                return self.follow_block(statement)
            case Try():
                return self.follow([*statement.body, *statement.orelse, *statement.finalbody])
            case Import() | ImportFrom():
                self._import(statement)
            case FunctionDef() | AsyncFunctionDef() | ClassDef():
                self._define(statement)
            case _:
                self._set(statement)
        return False

    def _set(self, statement: stmt) -> None:
        """Follow a statement that sets names, or that only computes something."""
        match statement:
            case Assign():
                value = self.evaluate(statement.value)
                for target in statement.targets:
                    self.assign(target, value)
            case AnnAssign() if statement.value is not None:
                self.assign(statement.target, self.evaluate(statement.value))
            case AugAssign():
                changed = BinOp(statement.target, statement.op, statement.value)
                copy_location(changed, statement)
                self.assign(statement.target, self.evaluate(changed))
            case Expr():
                self.evaluate(statement.value)

    def _define(self, statement: FunctionDef | AsyncFunctionDef | ClassDef) -> None:
        """Note a function or a class of the script."""
        if isinstance(statement, ClassDef):
            self.scopes[-1][statement.name] = self._read_class(statement)
            return
        function = Function(statement, statement.name, statement.lineno)
        self.scopes[-1][statement.name] = function
        self.script.functions.setdefault(statement.name, function)

    def _import(self, statement: Import | ImportFrom) -> None:
        """Note what names of libraries are called here."""
        module = statement.module if isinstance(statement, ImportFrom) else ""
        for alias in statement.names:
            path = f"{module}.{alias.name}" if module else alias.name
            name = alias.asname or alias.name.partition(".")[0]
            if not module and not alias.asname:
                path = name
            self.scopes[-1][name] = NameValue(path, statement.lineno)

    def _read_class(self, statement: ClassDef) -> ClassValue:
        """A class by its fields; its methods are code."""
        fields = {}
        for inner in statement.body:
            if isinstance(inner, AnnAssign) and isinstance(inner.target, Name):
                if inner.value is not None:
                    fields[inner.target.id] = field_default(self.evaluate(inner.value))
            elif isinstance(inner, Assign) and isinstance(inner.targets[0], Name):
                fields[inner.targets[0].id] = self.evaluate(inner.value)
        base = self.evaluate(statement.bases[0]) if statement.bases else None
        return ClassValue(statement.name, fields, base.path if isinstance(base, NameValue) else "")

    def follow_condition(self, statement: If) -> bool:
        """Follow the branch that a constant chooses; else the first one, and say so."""
        test = self.evaluate(statement.test)
        if is_constant(test):
            return self.follow(statement.body if test else statement.orelse)
        before = dict(self.scopes[-1])
        self.follow(statement.body)
        first = self.scopes[-1]
        self.scopes[-1] = dict(before)
        self.follow(statement.orelse)
        second = self.scopes[-1]
        names = differing_names(first, second)
        for name in names:
            first[name] = merge_branches(before, first, second, name, statement.lineno)
        self.scopes[-1] = first
        if names:
            text = f"if {shown(statement.test)}"
            why = f"line {statement.lineno}, {CONDITION_REMARK}"
            doubt = Doubt(text, Remark([], why), frozenset(names))
            self.script.doubts.append(doubt)
        return False

    def follow_loop(self, statement: For | AsyncFor | While) -> bool:
        """Follow the first turn of a loop. A name that each turn sets has no one value."""
        if not isinstance(statement, While):
            values = self.evaluate(statement.iter)
            turn: Value = Code(shown(statement.target), statement.lineno)
            if isinstance(values, list) and values and is_constant(values):
                turn = values[0]
                text = f"for {shown(statement.target)}"
                why = f"line {statement.lineno}, {LOOP_REMARK}"
                names = frozenset(names_of(statement.target))
                self.script.doubts.append(Doubt(text, Remark(values, why), names))
            self.assign(statement.target, turn)
        return self.follow(statement.body)

    def follow_block(self, statement: With | AsyncWith) -> bool:
        """Follow the block of a ``with``, and note the name that it gives."""
        for item in statement.items:
            value = self.evaluate(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        return self.follow(statement.body)

    # --- Expressions ---

    def evaluate(self, node: expr) -> Value:
        """The value of an expression, Code where the text does not say it."""
        match node:
            case Constant():
                return node.value
            case Name():
                return self.find(node.id, node.lineno)
            case List() | Tuple():
                return [self.evaluate(entry) for entry in node.elts]
            case Dict():
                return self.evaluate_mapping(node)
            case Attribute():
                return self.evaluate_attribute(node)
            case Subscript():
                return self.evaluate_subscript(node)
            case Call():
                return self.evaluate_call(node)
            case Lambda():
                return Function(node, shown(node), node.lineno)
            case ListComp() | GeneratorExp():
                receiver = self.evaluate(node.generators[0].iter)
                return CallValue("for", shown(node), node.lineno, receiver)
            case _:
                return self.calculate(node)

    def calculate(self, node: expr) -> Value:
        """The value of an expression with operators, all of whose parts are constants."""
        match node:
            case BinOp():
                return self._combine(node, node.op, node.left, node.right)
            case UnaryOp():
                return self.evaluate_sign(node)
            case BoolOp():
                return self.evaluate_choice(node)
            case IfExp():
                test = self.evaluate(node.test)
                if is_constant(test):
                    return self.evaluate(node.body if test else node.orelse)
            case Compare() if len(node.ops) == 1:
                return self._combine(node, node.ops[0], node.left, node.comparators[0])
            case JoinedStr():
                return self.join_text(node)
        return as_code(node)

    def _combine(self, node: expr, sign: AST, first: expr, second: expr) -> Value:
        """The value of an operation on two expressions."""
        left = self.evaluate(first)
        right = self.evaluate(second)
        if is_constant(left) and is_constant(right):
            with suppress(ValueError):
                return calculate(sign, left, right)
        return as_code(node)

    def evaluate_sign(self, node: UnaryOp) -> Value:
        """The value of ``not`` and of a minus in front of a number."""
        operand = self.evaluate(node.operand)
        if isinstance(node.op, Not) and is_constant(operand):
            return not operand
        if isinstance(node.op, USub) and isinstance(operand, int | float):
            return -operand
        return as_code(node)

    def evaluate_choice(self, node: BoolOp) -> Value:
        """The first value that decides an ``or``, or an ``and``."""
        is_or = isinstance(node.op, Or)
        value: Value = None
        for part in node.values:
            value = self.evaluate(part)
            if not is_constant(value):
                return as_code(node)
            if bool(value) == is_or:
                return value
        return value

    def join_text(self, node: JoinedStr) -> Value:
        """The text of an f-string, all of whose parts are constants."""
        pieces = []
        for part in node.values:
            inner = part.value if isinstance(part, FormattedValue) else part
            value = self.evaluate(inner)
            has_format = isinstance(part, FormattedValue) and part.format_spec is not None
            if has_format or not isinstance(value, str | int | float):
                return as_code(node)
            pieces.append(str(value))
        return "".join(pieces)

    def evaluate_mapping(self, node: Dict) -> Value:
        """The keys and values of a mapping."""
        mapping: dict[str, Value] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node)
            if key_node is None:  # **other
                if not isinstance(value, dict):
                    return as_code(node)
                mapping |= value
                continue
            key = self.evaluate(key_node)
            if not isinstance(key, str | int | float):
                return as_code(node)
            mapping[str(key)] = value
        return mapping

    def evaluate_attribute(self, node: Attribute) -> Value:
        """A field: of a library, a class, a call's own arguments, or of what flags were typed."""
        owner = self.evaluate(node.value)
        if isinstance(owner, NameValue):
            return NameValue(f"{owner.path}.{node.attr}", node.lineno)
        if isinstance(owner, ClassValue) and node.attr in owner.fields:
            return owner.fields[node.attr]
        if isinstance(owner, CallValue) and node.attr in owner.keywords:
            return owner.keywords[node.attr]
        if isinstance(owner, CallValue) and owner.last.startswith("parse_"):
            return self.script.flags.get(node.attr, as_code(node))
        return as_code(node)

    def evaluate_subscript(self, node: Subscript) -> Value:
        """An entry of a list or a mapping, or a part of the rows that a call gives."""
        owner = self.evaluate(node.value)
        if isinstance(node.slice, Slice):
            bounds = []
            for bound in (node.slice.lower, node.slice.upper):
                bounds.append(None if bound is None else self.evaluate(bound))
            if isinstance(owner, CallValue):
                return CallValue("[:]", shown(node), node.lineno, owner, tuple(bounds))
            return as_code(node)
        key = self.evaluate(node.slice)
        if isinstance(owner, dict) and isinstance(key, str) and key in owner:
            return owner[key]
        if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
            return owner[key]
        if isinstance(owner, CallValue):
            return CallValue("[]", shown(node), node.lineno, owner, (key,))
        return as_code(node)

    # --- Calls ---

    def evaluate_call(self, node: Call) -> Value:
        """The value of a call: that of a function that is known, or the call itself."""
        call = self._read_call(node)
        function = self.evaluate(node.func) if isinstance(node.func, Name) else None
        if isinstance(function, Function):
            return self.follow_function(function, call)
        if isinstance(function, ClassValue):
            if function.base and not function.fields:
                call = replace(call, name=function.base)
            else:
                return ClassValue(
                    function.name, {**function.fields, **call.keywords}, function.base
                )
        known = KNOWN_FUNCTIONS.get(call.name)
        if known and not call.keywords and is_constant(list(call.positional)):
            try:
                return known(call.positional)
            except (ValueError, TypeError, OverflowError):
                return Code(call.text, call.line)
        if call.last == "dict" and not call.positional:
            return dict(call.keywords)
        if call.last == "add_argument":
            self._note_flag(call)
        if len(self.script.calls) < MAX_CALLS:
            self.script.calls.append(call)
        return call

    def _read_call(self, node: Call) -> CallValue:
        """A call with the values of its arguments."""
        receiver: Value = None
        if isinstance(node.func, Attribute):
            owner = self.evaluate(node.func.value)
            name = node.func.attr
            if isinstance(owner, NameValue):
                name = f"{owner.path}.{name}"
            else:
                receiver = owner
        else:
            function = self.evaluate(node.func)
            name = function.path if isinstance(function, NameValue) else shown(node.func)
        positional: list[Value] = []
        for argument in node.args:
            if isinstance(argument, Starred):
                positional.append(as_code(argument))
            else:
                positional.append(self.evaluate(argument))
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, dict):
                keywords |= value
            else:
                keywords[f"**{shown(keyword.value)}"] = value
        return CallValue(
            name=name,
            text=shown(node),
            line=node.lineno,
            receiver=receiver,
            positional=tuple(positional),
            keywords=keywords,
            names=frozenset(names_of(node)),
        )

    def _note_flag(self, call: CallValue) -> None:
        """Note the default of a flag of the script, which holds where nobody types it."""
        names = [name for name in call.positional if isinstance(name, str)]
        flags = [name for name in names if name.startswith("--")] or names
        if not flags:
            return
        key = call.keywords.get("dest") or flags[0].lstrip("-").replace("-", "_")
        default = call.keywords.get("default")
        action = call.keywords.get("action")
        if "default" not in call.keywords and action in ("store_true", "store_false"):
            default = action == "store_false"
        if default is None and (call.keywords.get("required") or not flags[0].startswith("--")):
            default = Code(f"the flag {flags[0]}", call.line)
        self.script.flags[str(key)] = default

    def follow_function(self, function: Function, call: CallValue) -> Value:
        """The value that a function of the script returns when it is called like this."""
        node = function.node
        self.functions_followed += 1
        # Functions may call each other without an end, or each of them many others.
        is_too_deep = len(self.returned) >= MAX_DEPTH or self.functions_followed > MAX_FOLLOWED
        if isinstance(node, Lambda) or is_too_deep:
            return call
        self.script.called.add(function.text)
        with self._scope(self._bind(node, call)) as returned:
            self.follow(node.body)
        if not returned or returned[0] is None:
            return call
        return returned[0]

    @contextmanager
    def _scope(self, scope: Scope) -> Iterator[list[Value]]:
        """A scope of its own; yields the list of what is returned in it."""
        returned: list[Value] = []
        self.scopes.append(scope)
        self.returned.append(returned)
        try:
            yield returned
        finally:
            self.scopes.pop()
            self.returned.pop()

    def _bind(self, node: FunctionDef | AsyncFunctionDef, call: CallValue) -> Scope:
        """The values of the parameters of a function in a call."""
        parameters = node.args
        ordered = [*parameters.posonlyargs, *parameters.args]
        scope: Scope = {}
        for parameter in [*ordered, *parameters.kwonlyargs]:
            scope[parameter.arg] = Code(parameter.arg, node.lineno)
        first_default = len(ordered) - len(parameters.defaults)
        for parameter, default in zip(ordered[first_default:], parameters.defaults, strict=True):
            scope[parameter.arg] = self.evaluate(default)
        for parameter, keyword in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
            if keyword is not None:
                scope[parameter.arg] = self.evaluate(keyword)
        for parameter, value in zip(ordered, call.positional, strict=False):
            scope[parameter.arg] = value
        for name, value in call.keywords.items():
            if name in scope:
                scope[name] = value
        return scope


def read_script_tree(tree: Module, wanted: Callable[[CallValue], bool]) -> Script:
    """The calls of a script; of functions that nobody calls only where no call is ``wanted``.

    Such a function is started by a library, as ``fire`` does it: its parameters have their
    defaults.
    """
    reader = Reader()
    reader.follow(tree.body)
    script = reader.script
    for name, function in list(script.functions.items()):
        if any(wanted(call) for call in script.calls):
            break
        if name in script.called:
            continue
        reader.follow_function(function, CallValue(name, name, function.line))
    return script
