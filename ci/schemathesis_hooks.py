"""What is changed in a request before it is sent."""
import schemathesis

LONGEST_MS = 5_000
MOST_INPUTS = 4


@schemathesis.hook
def before_call(context, case, kwargs):
    """Nobody waits a day: some programs never end, such as Node where it may start fewer than five threads."""
    inputs = case.body.get("stdin") if isinstance(case.body, dict) else None
    if isinstance(inputs, list) and MOST_INPUTS < len(inputs) <= 256:
        del inputs[MOST_INPUTS:]
    limits = case.body.get("limits") if isinstance(case.body, dict) else None
    if not isinstance(limits, dict) or case.operation.path != "/v1/runs":
        return
    for name in ("timeout_ms", "compile_timeout_ms"):
        asked = limits.get(name)
        if isinstance(asked, int) and LONGEST_MS < asked <= 86_400_000:
            limits[name] = LONGEST_MS
