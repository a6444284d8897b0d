"""The read API, from the OpenAPI document that it serves."""

from __future__ import annotations

from typing import Any

from fastapi.openapi.utils import get_openapi

from muster.api.read import VERSION, router
from tests.docs.reference.markdown import code, head, table

ABOUT = """`/muster-api/v1` of Airflow's API server gives JSON to logins that may see the Fleet page, by Airflow's
own tokens ([starting-tests](../starting-tests.md) makes the file `token`). The page uses the same functions. Only a
login can read `/muster-api/v1/openapi.json`, which describes the API to programs. Programs without a login report what
they observe of nodes to `POST /muster-api/v1/reports`, with a token that can only report.

```
AIRFLOW=https://airflow.example.org
curl -sS --fail-with-body -H @token "$AIRFLOW/muster-api/v1/nodes?state=quarantine&rack=r12"
curl -sS --fail-with-body -H @token "$AIRFLOW/muster-api/v1/nodes/gpu-0001/findings"
```"""


def page() -> str:
    """docs/reference/api.md."""
    document = get_openapi(title="Muster", version=VERSION, routes=router.routes)
    schemas = document["components"]["schemas"]
    parts = [head("Read API", ABOUT)]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"\n## {method.upper()} {path}\n\n{_prose(operation)}\n")
            parameters = [
                (code(each["name"]), each["in"], _type(each["schema"]), each.get("description", ""))
                for each in operation.get("parameters", [])
            ]
            if parameters:
                parts.append("\n" + table(("parameter", "in", "type", "meaning"), parameters))
            parts.append(f"\nAnswer: {_type(_answer(operation))}\n")
    for name, schema in sorted(schemas.items()):
        if "ValidationError" in name:
            continue
        if "enum" in schema:
            parts.append(f"\n## {name}\n\nOne of {_type(schema)}.\n")
        else:
            rows = [
                (code(field), _type(each), each.get("description", "")) for field, each in schema["properties"].items()
            ]
            parts.append(f"\n## {name}\n\n{_prose(schema)}\n\n" + table(("field", "type", "meaning"), rows))
    return "".join(parts)


def _prose(part: dict[str, Any]) -> str:
    return " ".join(str(part.get("description") or part.get("summary") or "").split())


def _answer(operation: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = operation["responses"]["200"].get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    return schema


def _type(schema: dict[str, Any]) -> str:
    """A schema in words: "list of Finding", "string or null"."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(code(str(each)) for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("format"):
        return str(schema["format"])
    return str(schema.get("type", "JSON"))
