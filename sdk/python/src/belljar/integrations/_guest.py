"""Runs in the box: one step of a Python session, with the state that the steps before it left.

The state is a pickle that only boxes read. Definitions (imports, functions, classes) are executed again from their source;
variables are pickled one by one, and those that cannot be are named, so that nobody wonders where they went.
"""

import ast
import io
import json
import os
import pickle
import sys
import traceback

FOLDER = ".belljar"
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def main():
    with open(os.path.join(FOLDER, "step.py"), encoding="utf-8") as opened:
        source = opened.read()
    namespace = sys.modules["__main__"].__dict__
    own = set(namespace)
    state = load(namespace)
    answer = step(source, namespace)
    answer["lost"] = save(state, source, namespace, own) if not answer.get("syntax") else []
    with open(os.path.join(FOLDER, "answer.json"), "w", encoding="utf-8") as opened:
        json.dump(answer, opened)


def load(namespace):
    path = os.path.join(FOLDER, "state")
    if not os.path.exists(path):
        return {"definitions": [], "variables": {}}
    with open(path, "rb") as opened:
        state = pickle.load(opened)
    for definition in state["definitions"]:
        execute(definition, namespace)
    for name, pickled in state["variables"].items():
        try:
            namespace[name] = pickle.loads(pickled)
        except Exception as error:
            print(f"note: the variable {name} of an earlier step is lost: {error}", file=sys.stderr)
    return state


def execute(source, namespace):
    try:
        exec(compile(source, "<step>", "exec"), namespace)
    except Exception as error:
        print(f"note: a definition of an earlier step is lost: {error}", file=sys.stderr)


def step(source, namespace):
    """Executes the code; the value of a last expression is the result, as in a notebook."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return {"syntax": True, "error": described(error)}
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, "<step>", "exec"), namespace)
        if last is None:
            return {}
        return result_of(eval(compile(ast.Expression(last.value), "<step>", "eval"), namespace))
    except BaseException as error:
        return {"error": described(error)}


def result_of(value):
    if value is None:
        return {}
    try:
        json.dumps(value)
        return {"value": value, "text": repr(value)}
    except (TypeError, ValueError):
        return {"text": repr(value)}


def described(error):
    return {"name": type(error).__name__, "value": str(error), "traceback": traceback.format_exc()}


def save(state, source, namespace, own):
    definitions = state["definitions"] + [ast.unparse(node) for node in ast.parse(source).body if is_definition(node)]
    variables, lost = {}, []
    for name, value in list(namespace.items()):
        if name in own or name.startswith("__") or is_defined(value, name):
            continue
        try:
            variables[name] = pickle.dumps(value)
        except Exception:
            if not any(is_assigned(definition, name) for definition in definitions):
                lost.append(name)
    buffer = io.BytesIO()
    pickle.dump({"definitions": definitions, "variables": variables}, buffer)
    with open(os.path.join(FOLDER, "state"), "wb") as opened:
        opened.write(buffer.getvalue())
    return lost


def is_definition(node):
    if isinstance(node, ast.Try):  # an import that may fail
        return all(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in node.body)
    return isinstance(node, DEFINITIONS) or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda))


def is_assigned(definition, name):
    return definition.startswith(f"{name} = lambda")


def is_defined(value, name):
    """Whether a definition brings it back: a module, or a function or class by its own name."""
    return isinstance(value, type(sys)) or (callable(value) and getattr(value, "__name__", None) == name)


main()
