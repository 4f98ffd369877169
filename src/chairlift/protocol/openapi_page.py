"""page: an OpenAPI document as an HTML page."""

from html import escape

import orjson

from chairlift.protocol.openapi import Schema


def page(openapi: Schema) -> str:
    """Return the document as an HTML page."""
    sections = []
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            sections.append(
                f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
            )
            body: Schema = next(iter(operation.get("requestBody", {}).get("content", {}).values()), {})
            properties = body.get("schema", {}).get("properties", {})
            rows = "".join(
                f"<tr><td><code>{escape(name)}</code></td><td>{escape(schema.get('description', ''))}</td></tr>"
                for name, schema in properties.items()
            )
            if "example" in body:
                sections.append(f"<pre>{escape(orjson.dumps(body['example']).decode())}</pre>")
            sections.append(f"<table>{rows}</table>" if rows else "")
    style = (
        "body{font:16px system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}td{padding:.1rem .8rem .1rem 0}"
        "pre{white-space:pre-wrap}"
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Chairlift</title><style>{style}</style>"
        f"<h1>Chairlift {escape(openapi['info']['version'])}</h1>"
        f"<p>For programs: <a href=/openapi.json>openapi.json</a></p>{''.join(sections)}</html>"
    )
