"""The differences between our requests and the SDKs' that docs/model-differences.md allows."""

import copy
import json
import re
import urllib.parse

from harness import ROOT

DOCUMENT = ROOT / "docs/model-differences.md"
ABSENT = object()
ANY = object()
HOLE = "…"


class Difference:
    """A row. It changes what it allows on one side, so that both are compared for plain equality afterwards."""

    def __init__(self, api, where, ours, sdk):
        self.api, self.where = api, where
        self.ours, self.sdk = cell(ours), cell(sdk)
        self.used = False

    def __str__(self):
        return f"{self.api} {self.where}"

    def on_text(self, ours, sdk):
        """The SDK's path or header, made ours where the row allows it."""
        text = lambda value: ABSENT if value is None else value
        held = match(self.sdk, text(sdk))
        if held is None or text(ours) != fill(self.ours, held):
            return sdk
        self.used = True
        return ours

    def on_bodies(self, ours, sdk):
        steps = [re.compile(pattern(step)) for step in self.where.strip("/").split("/")]
        if isinstance(self.sdk, Renamed):
            for place, key in list(places(sdk, [*steps[:-1], re.compile(re.escape(self.sdk.name))])):
                place[self.where.rpartition("/")[2]] = place.pop(key)
                self.used = True
        elif isinstance(self.sdk, OneByOne):
            for place, key in places(sdk, steps):
                turns = joined(place[key])
                self.used |= len(turns) < len(place[key])
                place[key] = turns
        elif isinstance(self.sdk, UrlSafe):
            for place, key in places(sdk, steps):
                standard = place[key].replace("-", "+").replace("_", "/")
                self.used |= standard != place[key]
                place[key] = standard
        elif self.sdk is ABSENT:
            self.leave_out(ours, sdk, steps, self.ours)
        elif self.ours is ABSENT:
            self.leave_out(sdk, ours, steps, self.sdk)
        else:
            for place, key in places(sdk, steps):
                held = match(self.sdk, place[key])
                if held is not None:
                    place[key] = fill(self.ours, held)
                    self.used = True

    def leave_out(self, body, other, steps, template):
        """Takes away what `template` matches: keys that the other side does not have, and entries of lists."""
        for place, key, path in list(places(body, steps, with_path=True))[::-1]:
            alone = isinstance(place, list) or get(other, path) is ABSENT
            if alone and match(template, place[key]) is not None:
                del place[key]
                self.used = True


class Renamed:
    def __init__(self, name):
        self.name = name


class UrlSafe:
    """Base64 in the alphabet of URLs."""


class OneByOne:
    """Messages of one role that follow one another, not joined."""


def cell(text):
    words = {
        "absent": ABSENT, "any": ANY, "joined": ANY, "one by one": OneByOne(), "in the alphabet of URLs": UrlSafe(),
    }
    if text in words:
        return words[text]
    renamed = re.fullmatch(r"as `(\w+)`", text)
    if renamed:
        return Renamed(renamed[1])
    written = re.fullmatch(r"`(.*)`", text)
    assert written, f"not understood in {DOCUMENT.name}: {text}"
    try:
        return json.loads(written[1])
    except json.JSONDecodeError:
        return written[1]


def pattern(step):
    if step == "*":
        return ".*"
    alternatives = re.fullmatch(r"\{(.*)\}", step)
    return "|".join(map(re.escape, alternatives[1].split(","))) if alternatives else re.escape(step)


def differences():
    """Every row of the document's first table, which ends at its first heading below the title."""
    table, _, _ = DOCUMENT.read_text().partition("\n## ")
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    found = []
    for row in rows[1:]:
        api, where, ours, sdk, why = (column.strip() for column in row.strip("|").split("|"))
        assert why, f"no reason: {row}"
        found.append(Difference(api, where.strip("`"), ours, sdk))
    return found


# ---- values --------------------------------------------------------------------------------------------

def places(value, steps, path=(), with_path=False):
    """(container, key) of everything in `value` that these steps lead to."""
    if not isinstance(value, (dict, list)):
        return
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        if not steps[0].fullmatch(str(key)):
            continue
        here = (*path, key)
        if len(steps) == 1:
            yield (value, key, here) if with_path else (value, key)
        else:
            yield from places(value[key], steps[1:], here, with_path)


def get(value, path):
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return value


def match(template, value):
    """What stands at the hole of the template, `""` where it has none; `None` where it does not match."""
    if template is ANY:
        return None if value is ABSENT else ""
    if template is ABSENT or value is ABSENT:
        return "" if template is value else None
    if isinstance(template, str) and HOLE in template and isinstance(value, str):
        before, _, after = template.partition(HOLE)
        long_enough = len(value) >= len(before) + len(after)
        found = value.startswith(before) and value.endswith(after) and long_enough
        return value[len(before):len(value) - len(after)] if found else None
    if type(template) is not type(value):
        return None
    if isinstance(template, (dict, list)):
        if len(template) != len(value) or isinstance(template, dict) and template.keys() != value.keys():
            return None
        keys = template if isinstance(template, dict) else range(len(template))
        held = [match(template[key], value[key]) for key in keys]
        return None if None in held else "".join(held)
    return "" if template == value else None


def fill(template, held):
    if isinstance(template, str):
        return template.replace(HOLE, held)
    if isinstance(template, dict):
        return {key: fill(value, held) for key, value in template.items()}
    if isinstance(template, list):
        return [fill(value, held) for value in template]
    return template


def joined(messages):
    """Messages of one role that follow one another as one, where they hold lists."""
    turns = []
    for message in messages:
        key = "parts" if "parts" in message else "content"
        last = turns[-1] if turns else {}
        if last.get("role") == message["role"] and isinstance(message[key], list):
            last[key] = last[key] + message[key]
        else:
            turns.append(dict(message))
    return turns


def unlike(ours, sdk, at=""):
    """Where two JSON values differ, with both values; a number is not a truth value, nor an integer a float."""
    if isinstance(ours, dict) and isinstance(sdk, dict):
        for key in dict.fromkeys([*ours, *sdk]):
            yield from unlike(ours.get(key, ABSENT), sdk.get(key, ABSENT), f"{at}/{key}")
    elif isinstance(ours, list) and isinstance(sdk, list):
        for number in range(max(len(ours), len(sdk))):
            yield from unlike(get(ours, (number,)), get(sdk, (number,)), f"{at}/{number}")
    elif type(ours) is not type(sdk) or ours != sdk:
        show = lambda value: "absent" if value is ABSENT else json.dumps(value, ensure_ascii=False)[:300]
        yield f"{at}: ours {show(ours)}, SDK {show(sdk)}"


HEADERS = ("content-type", "authorization", "x-api-key", "x-goog-api-key", "anthropic-version", "anthropic-beta")


def compare(api, ours, sdk, allowed):
    """What differs between two requests (method, path, headers, body) beyond what is allowed."""
    allowed = [one for one in allowed if one.api == api]
    found = list(unlike(ours[0], sdk[0], "method"))
    texts = {"path": tuple(urllib.parse.unquote(side[1]) for side in (ours, sdk))}
    texts |= {name: (ours[2].get(name), sdk[2].get(name)) for name in HEADERS}
    for name, (our_text, sdk_text) in texts.items():
        for one in allowed:
            if one.where == name and our_text != sdk_text:
                sdk_text = one.on_text(our_text, sdk_text)
        found += unlike(our_text, sdk_text, name)
    our_body, sdk_body = copy.deepcopy(ours[3]), copy.deepcopy(sdk[3])
    for one in allowed:
        if one.where.startswith("/"):
            one.on_bodies(our_body, sdk_body)
    return found + list(unlike(our_body, sdk_body))
