"""A connector's configuration as a form or as JSON: of one that exists, or of a new one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from semel.config.definition import Type
from semel.config.reading import BLANKS
from semel.core.context import CONNECTOR
from semel.core.redact import redacted
from semel.driver.base import State
from semel.driver.planning import with_plan
from semel.driver.rehearsal import Rehearsal, rehearse
from semel.worker import plugins
from semel.worker.errors import BadRequest, NotFound, RequestError
from semel.worker.herder import Herder
from semel.worker.page.site import Form, PageContext, see
from semel.worker.rest.app import RequestConfig, initial_state
from semel.worker.rest.jersey import loaded
from semel.worker.secrets import Difference, differences, kept, shown

_CLASS = "connector.class"
_FIRST = 20
"""The records that a dry run shows."""
DryRun = tuple[Rehearsal | None, str]
"""A dry run, or why there is none."""
_KEY = "key."
"""What the names of fields with values begin with."""
_OF_LINES = (
    *("ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"),
    *(".pem", "query.masked"),
)
"""The ends of keys whose values have lines, which a browser drops from fields of one line."""
_STATES = (State.RUNNING, State.PAUSED, State.STOPPED)
_ADAPTER: TypeAdapter[RequestConfig] = TypeAdapter(RequestConfig)


@dataclass(frozen=True, slots=True)
class Field:
    """A key in a form. ``default`` is shown where nothing is given."""

    key: str
    value: str
    default: str = ""
    documentation: str = ""
    group: str = "Other keys"
    required: bool = False
    important: bool = True
    secret: bool = False
    choices: Sequence[str] = ()
    errors: Sequence[str] = ()

    @property
    def is_long(self) -> bool:
        """Whether its value does not fit into one line."""
        if self.key.endswith(_OF_LINES):
            return True
        return not self.secret and ("\n" in self.value or len(self.value) > 80)


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration that has not been applied: what is wrong with it, and what it changes."""

    name: str
    exists: bool
    values: Mapping[str, str]
    fields: Sequence[Field] = ()
    errors: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    changes: Sequence[Difference] = ()
    seen: str = ""
    """Stands for the configuration that the changes are about."""
    typed: str = ""
    """A text that is no configuration."""

    @property
    def text(self) -> str:
        """As JSON."""
        return self.typed or json.dumps(self.values, indent=2, ensure_ascii=False)

    @property
    def groups(self) -> list[tuple[str, list[Field]]]:
        """The fields by group. First come those that are given, needed, wrong or important."""
        first: list[Field] = []
        groups = {"Given, or important": first}
        for field in self.fields:
            if field.value or field.required or field.errors or field.important:
                first.append(field)
            else:
                groups.setdefault(field.group, []).append(field)
        return list(groups.items())


def add(router: APIRouter, context: PageContext) -> None:
    """Add the pages that edit a configuration, and those that create a connector."""
    herder, writers = context.herder, [Depends(context.check_writer)]

    @router.get("/edit", dependencies=writers)
    def edit(request: Request, name: str, view: str = "form") -> Response:
        present = herder.config(name)
        values = shown(present)
        fields = _declared(herder, values.get(_CLASS, ""), values)
        return _shown(
            context, request, Draft(name, True, values, fields, seen=_seen(present)), view
        )

    @router.post("/edit", dependencies=writers)
    def check_or_apply(request: Request, name: str, form: Form, view: str = "form") -> Response:
        present = herder.config(name)
        draft = _given(context, form, name, present)
        if form.get("do") == "apply" and not draft.errors and form.get("seen") == draft.seen:
            try:
                herder.put(name, kept({**draft.values, "name": name}, present))
            except BadRequest as error:
                draft = replace(draft, errors=[("", str(error))])
            else:
                return see("/connector", name=name, did="apply")
        tried = _tried(context, form, draft, present)
        return _shown(context, request, draft, view, checked=True, tried=tried)

    @router.get("/new", dependencies=writers)
    def new(request: Request, plugin: str = "", view: str = "form") -> Response:
        if not plugin:
            listed = herder.connector_plugins()
            return context.show(request, "plugins.html", plugins=listed)
        herder.definitions(plugin)  # there is one of this name
        values = {_CLASS: plugin}
        fields = _declared(herder, plugin, values)
        return _shown(context, request, Draft("", False, values, fields), view)

    @router.post("/new", dependencies=writers)
    def check_or_create(request: Request, form: Form, view: str = "form") -> Response:
        name = form.get("name", "").strip(BLANKS) or form.get(f"{_KEY}name", "").strip(BLANKS)
        CONNECTOR.set(name)
        draft = _given(context, form, name, {})
        if draft.name in herder.connectors():
            there = ("name", f"A connector {draft.name} already exists")
            draft = replace(draft, errors=[*draft.errors, there])
        state = initial_state(form.get("state") or None)
        if form.get("do") == "apply" and not draft.errors:
            try:
                herder.create(draft.name, kept(draft.values, {}), state)
            except BadRequest as error:
                draft = replace(draft, errors=[("", str(error))])
            else:
                return see("/connector", name=draft.name, did="create")
        tried = _tried(context, form, draft, {})
        return _shown(context, request, draft, view, checked=True, state=state, tried=tried)


def _shown(
    context: PageContext,
    request: Request,
    draft: Draft,
    view: str,
    *,
    checked: bool = False,
    state: State = State.RUNNING,
    tried: DryRun | None = None,
) -> Response:
    return context.show(
        request,
        "edit.html",
        draft=draft,
        view=view,
        checked=checked,
        state=state,
        tried=tried,
        states=_STATES,
        plugin=draft.values.get(_CLASS, ""),
    )


def _tried(
    context: PageContext, form: Mapping[str, str], draft: Draft, present: Mapping[str, str]
) -> DryRun | None:
    """The first records as this configuration would write them, if a form asks for that."""
    if form.get("do") != "try" or draft.errors:
        return None
    try:
        full = {**kept(draft.values, present), "name": draft.name}
        return context.herder.tried(full, with_plan, rehearse, _FIRST), ""
    except RequestError as error:
        return None, redacted(str(error))


def _given(
    context: PageContext, form: Mapping[str, str], name: str, present: Mapping[str, str]
) -> Draft:
    """The configuration that a form has, checked."""
    try:
        given = _of_json(form["json"]) if "json" in form else _of_fields(form, present)
    except BadRequest as error:
        fields = {n.removeprefix(_KEY): v for n, v in form.items() if n.startswith(_KEY) and v}
        values = fields or shown(present)
        typed, wrong = form.get("json", ""), [("", str(error))]
        return Draft(name, bool(present), values, _fields({}, values), wrong, typed=typed)
    if not present:
        name = name or str(given.get("name") or "").strip(BLANKS)
    return _draft(context, name, {**given, "name": name}, present)


def _of_fields(form: Mapping[str, str], present: Mapping[str, str]) -> RequestConfig:
    """The values of fields; an empty one is no value, unless the key has an empty one now."""
    values = {
        field.removeprefix(_KEY): value
        for field, value in form.items()
        if field.startswith(_KEY) and (value or present.get(field.removeprefix(_KEY)) == "")
    }
    for line in form.get("more", "").split("\n"):
        key, equals, value = (part.strip() for part in line.partition("="))
        if line.strip() and not (key and equals):
            raise BadRequest(f"{line.strip()[:200]!r} is not KEY=VALUE")
        if key:
            values[key] = value
    return _checked(values)


def _of_json(text: str) -> RequestConfig:
    try:
        content = loaded(text.encode("utf-8", "surrogatepass"))
    except HTTPException as error:
        raise BadRequest(str(error.detail)) from None
    if not isinstance(content, dict):
        raise BadRequest("A configuration is a JSON object of keys and their values")
    # People paste what they would send to the REST API.
    inner = content.get("config")
    if isinstance(inner, dict) and content.keys() <= {"name", "config"}:
        content = {**inner, "name": content.get("name", inner.get("name"))}
    return _checked(content)


def _checked(values: Mapping[str, Any]) -> RequestConfig:
    try:
        return _ADAPTER.validate_python(values)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))[:200]}: {e['msg']}" for e in error.errors()]
        raise BadRequest("\n".join(wrong)) from None


def _draft(
    context: PageContext, name: str, given: plugins.RequestConfig, present: Mapping[str, str]
) -> Draft:
    values = {key: value for key, value in given.items() if value is not None}
    refused = ""
    try:
        full = kept(values, present)
        answer = context.herder.validate(full.get(_CLASS, ""), {**given, **full})
    except BadRequest as error:
        refused = str(error)
    own = shown(present)  # the check may have told which keys are secret
    visible = {k: own[k] if present.get(k) == v else v for k, v in values.items()}
    draft = Draft(name, bool(present), visible, seen=_seen(present))
    if refused:
        return replace(draft, fields=_fields({}, visible), errors=[("", refused)])
    errors = [
        (each["value"]["name"], message)
        for each in answer["configs"]
        for message in each["value"]["errors"]
    ]
    return replace(
        draft,
        fields=_fields(answer, visible),
        errors=errors,
        warnings=[warning["message"] for warning in answer["warnings"]],
        changes=differences(present, full),
    )


def _seen(present: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(shown(present), sort_keys=True).encode()).hexdigest()


def _declared(herder: Herder, plugin: str, values: Mapping[str, str]) -> list[Field]:
    """The fields of a form that nobody has sent yet: no process needs to judge it."""
    try:
        definitions = herder.definitions(plugin)
    except NotFound:  # of a class that this worker lacks
        definitions = ()
    return _fields(
        {"configs": [{"definition": asdict(d), "value": {}} for d in definitions]}, values
    )


def _fields(answer: Mapping[str, Any], values: Mapping[str, str]) -> list[Field]:
    fields = [
        _field(each["definition"], each["value"], values)
        for each in answer.get("configs", ())
        if each["definition"] is not None or each["value"]["name"] in values
    ]
    keys = {field.key for field in fields}
    return fields + [Field(key, values[key]) for key in values if key not in keys]


def _field(
    definition: Mapping[str, Any] | None, value: Mapping[str, Any], values: Mapping[str, str]
) -> Field:
    errors = value.get("errors", ())
    if definition is None:
        return Field(value["name"], values[value["name"]], errors=errors)
    key = definition["name"]
    return Field(
        key,
        values.get(key, ""),
        definition["default_value"] or "",
        definition["documentation"],
        definition["group"] or "Other keys",
        definition["required"],
        definition["importance"] == "HIGH",
        definition["type"] == Type.PASSWORD,
        value.get("recommended_values", ()),
        errors,
    )
