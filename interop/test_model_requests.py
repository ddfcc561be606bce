"""Our requests to models beside those of the official SDKs: the same conversations, held by our client and by an
SDK that builds each request from its own arguments, are the same requests, but for what docs/model-differences.md
lists."""

import functools

from harness import cases, workspace
from model_differences import compare, differences
from model_peers import OurClient, OurSide, Relay, conversations, scripted_model
from model_sdks import SIDES

CONVERSATIONS = conversations()
ALLOWED = differences()


@functools.cache
def held(name, api):
    """The differences between both sides' requests."""
    conversation = CONVERSATIONS[name]
    sides = []
    for ours in (True, False):
        with workspace() as folder, scripted_model(folder, conversation.script) as root, Relay(root) as relay:
            if ours:
                with OurClient(api, relay.url, conversation.models[api]) as client:
                    conversation.hold(OurSide(client, conversation))
            else:
                conversation.hold(SIDES[api](conversation, relay.url))
            sides.append(relay.seen)
    ours, sdk = sides
    assert len(ours) == len(sdk) == len(conversation.script), (len(ours), len(sdk))
    return [f"request {number}: {difference}" for number, pair in enumerate(zip(ours, sdk), 1)
            for difference in compare(api, *pair, ALLOWED)]


@cases(*((api, name) for name, conversation in CONVERSATIONS.items() for api in conversation.apis))
def test_requests_are_those_of_the_sdk(api, name):
    found = held(name, api)
    assert not found, "\n".join(["differences that docs/model-differences.md does not list:", *found[:20]])


def test_every_listed_difference_is_needed():
    for name, conversation in CONVERSATIONS.items():
        for api in conversation.apis:
            held(name, api)
    idle = [str(one) for one in ALLOWED if not one.used]
    assert not idle, f"rows of docs/model-differences.md that no conversation needs: {idle}"
