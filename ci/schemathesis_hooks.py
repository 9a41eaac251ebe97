"""What is changed in a request before it is sent."""
import schemathesis

LONGEST_MS = 5_000


@schemathesis.hook
def before_call(context, case, kwargs):
    """Nobody waits a day: some programs never end, such as Node where it may start fewer than five threads."""
    limits = case.body.get("limits") if isinstance(case.body, dict) else None
    if not isinstance(limits, dict) or case.operation.path != "/v1/runs":
        return
    asked = limits.get("timeout_ms")
    if isinstance(asked, int) and LONGEST_MS < asked <= 86_400_000:
        limits["timeout_ms"] = LONGEST_MS
