"""What holds for anybody who comes by the network; a browser is played by a plain WebSocket client."""

import asyncio
import io
import json
import socket
import struct
import sys
import threading
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import pytest
from fake_world import FakeWorld, openings
from PIL import Image
from test_dreamer import PATIENCE, eventually

from app import loop, serve
from app.autopilot import Autopilot
from app.dreamer import Dreamer
from app.errors import PackageError, UsageError
from app.gif import LastSeconds
from app.keys import Keys, for_browsers, shipped
from app.meter import Meter
from app.past import Past
from app.record import Recorder
from app.site import PAGE, Site
from app.visitor import AHEAD
from worldmodel.actions import action, held


@contextmanager
def served(tmp_path, world=None, host="127.0.0.1", token=None):
    """A game as `run.serve` would serve it, on a free port; it ends with the block."""
    world = world or FakeWorld(seconds=0.002)
    site = Site(host, 0, token, 90, shipped(), {"autopilot": Autopilot()})
    recorder = Recorder(tmp_path, {}, 17.5)
    dreamer = Dreamer(
        lambda report: world, openings(), "cellar", site.controller,
        fps=0, past=Past(4, 100), saves=tmp_path, remember=recorder.see,
    )  # fmt: skip
    site.attach(dreamer, Meter(), recorder, LastSeconds(17.5))
    site.dreamer = dreamer
    dreamer.start()
    playing = threading.Thread(target=lambda: play(site, dreamer, recorder))
    playing.start()
    try:
        yield site
    finally:
        dreamer.stop()
        playing.join(PATIENCE)
        recorder.close()


def play(site, dreamer, recorder):
    try:
        loop.play(site, dreamer, recorder)
    except MemoryError:
        pass  # what a test wanted; the dreamer keeps it
    finally:
        site.close()


class Browser:
    """Takes in what it is sent, and says when it has shown a frame unless it is `slow`."""

    def __init__(self, line, slow=False):
        self.line, self.slow = line, slow
        self.told, self.frames, self.pictures = {}, [], []

    async def say(self, **what):
        await self.line.send_str(json.dumps(what))

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self.take()

    async def take(self):
        message = await self.line.receive()
        if message.type == aiohttp.WSMsgType.TEXT:
            self.told |= json.loads(message.data)
        elif message.type == aiohttp.WSMsgType.BINARY:
            (length,) = struct.unpack(">I", message.data[:4])
            self.frames.append(json.loads(message.data[4 : 4 + length]))
            self.pictures.append(Image.open(io.BytesIO(message.data[4 + length :])))
            if not self.slow:
                await self.say(shown=1)
        else:
            raise ConnectionError(message)

    async def role(self, role):
        await self.until(lambda: self.told.get("role") == role)


def holding(world):
    """The keys of the frame that was begun last."""
    return held(world.steps[-1]) if world.steps else ()


@asynccontextmanager
async def browser(site, query="", slow=False, **headers):
    address = f"http://127.0.0.1:{site.port}/dream{query}"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, headers=headers, max_msg_size=0) as line,
    ):
        yield Browser(line, slow)


async def status(site, path="/", **headers):
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{site.port}{path}", headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def refused(site, query="", **headers):
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        async with browser(site, query, **headers):
            pass
    return error.value.status


def test_keys_change_the_dream_and_its_pictures_come_back(tmp_path):
    world = FakeWorld(seconds=0.002)

    async def visit():
        async with browser(site) as me:
            await me.role("plays")
            await me.until(lambda: world.steps)
            assert not world.steps[0].any()
            await me.say(held=["forward", "turn_left"])
            await me.until(lambda: holding(world) == ("forward", "turn_left"))
            await me.say(held=["turn_left"])
            await me.until(lambda: holding(world) == ("turn_left",))
            assert me.pictures[-1].size == (160, 112) and me.frames[-1]["memory"] == "tempcache"
            assert me.frames[-1]["world"] == "The Wet Cellar"

    with served(tmp_path, world) as site:
        asyncio.run(visit())


def test_a_tap_between_two_frames_is_not_lost(tmp_path):
    with served(tmp_path) as site:
        site._hold(action(["fire"]))
        site._hold(action())
        assert held(site._hands(0)) == ("fire",) and held(site._hands(1)) == ()


def test_two_cannot_both_play_and_the_second_is_told_who_does_and_watches(tmp_path):
    world = FakeWorld(seconds=0.002)

    async def visit():
        async with browser(site) as first:
            await first.role("plays")
            async with browser(site) as second:
                await second.role("watches")
                assert second.told["who"].startswith("somebody at 127.0.0.1, since ")
                await second.say(play=1)
                await second.say(held=["fire"])
                await second.say(wish="reset")
                await first.say(held=["forward"])
                await first.until(lambda: holding(world) == ("forward",))
                seen = len(second.frames)
                await second.until(lambda: len(second.frames) > seen + 5)
                assert second.told["role"] == "watches"
                assert not any("fire" in held(keys) for keys in world.steps)
                assert site.dreamer._run == 0  # nobody's reset was heard

    with served(tmp_path, world) as site:
        asyncio.run(visit())


def test_who_watches_may_play_once_the_other_is_gone(tmp_path):
    world = FakeWorld(seconds=0.002)

    async def visit():
        async with browser(site) as first:
            await first.role("plays")
            async with browser(site) as second:
                await second.role("watches")
                await first.line.close()
                await second.until(lambda: second.told["who"] is None)
                await second.say(play=1)
                await second.role("plays")
                await second.say(held=["use"])
                await second.until(lambda: holding(world) == ("use",))

    with served(tmp_path, world) as site:
        asyncio.run(visit())


def test_who_is_gone_holds_no_key_and_the_dream_holds_still_until_somebody_plays(tmp_path):
    world = FakeWorld(seconds=0.002)

    async def visit():
        async with browser(site) as me:
            await me.say(held=["forward"])
            await me.until(lambda: holding(world) == ("forward",))
            await me.say(wish="rewind")
            await me.until(lambda: me.told.get("state") == "rewinding")
        await asyncio.to_thread(eventually, lambda: site.dreamer.state == "paused")
        assert held(site._hands(0)) == ()
        before = len(world.steps)
        async with browser(site) as me:
            await me.until(lambda: len(world.steps) > before)
            assert not world.steps[-1].any()

    with served(tmp_path, world) as site:
        eventually(lambda: site.dreamer.state == "paused")
        assert not world.steps
        asyncio.run(visit())


def test_a_slow_browser_gets_new_frames_and_not_old_ones(tmp_path):
    world = FakeWorld(seconds=0.002)

    async def visit():
        async with browser(site) as player, browser(site, slow=True) as slow:
            await player.role("plays")
            await slow.until(lambda: len(slow.frames) == AHEAD)
            stuck = slow.frames[-1]["frame"]
            await player.until(lambda: player.frames and player.frames[-1]["frame"] > stuck + 100)
            await slow.say(shown=1)
            await slow.until(lambda: len(slow.frames) == AHEAD + 1)
            assert slow.frames[-1]["frame"] > stuck + 50

    with served(tmp_path, world) as site:
        asyncio.run(visit())


def test_without_the_token_nobody_comes_in(tmp_path):
    async def visit():
        for query in ("", "?token=", "?token=wrong", "?token=s3cr%C3%A9t"):
            assert await refused(site, query) == 403
            code, text = await status(site, f"/{query}")
            assert code == 403 and "<html" not in text
        assert (await status(site, "/?token=s3cret"))[0] == 200
        async with browser(site, "?token=s3cret") as me:
            await me.role("plays")

    with served(tmp_path, token="s3cret") as site:
        assert site.address.endswith("/?token=s3cret")
        asyncio.run(visit())


def test_a_page_from_elsewhere_may_not_play_even_in_the_players_own_browser(tmp_path):
    async def visit():
        assert await refused(site, Origin="http://evil.example") == 403
        assert await refused(site, Host="evil.example") == 403  # its name was made to lead here
        async with browser(site, Origin=f"http://127.0.0.1:{site.port}") as me:
            await me.role("plays")

    with served(tmp_path) as site:
        asyncio.run(visit())


def test_others_than_this_machine_always_need_a_token():
    def token(host):
        return Site(host, 0, None, 90, shipped(), {})._token

    assert not token("127.0.0.1") and not token("localhost")
    assert len(token("0.0.0.0")) > 16 and token("0.0.0.0") != token("0.0.0.0")


def test_wishes_are_granted_and_nonsense_is_not_heard(tmp_path):
    world = FakeWorld(seconds=0.002)

    async def visit():
        async with browser(site) as me:
            await me.role("plays")
            for nonsense in ("{", "[" * 4000, "7", '{"held": 3}', '{"held": [[]]}', '{"wish": "quit"}', "{}"):
                await me.line.send_str(nonsense)
            await me.say(say="a red room")
            await me.until(lambda: me.frames and me.frames[-1]["prompt"] == "a red room")
            await me.say(wish="memory")
            await me.until(lambda: "F4 takes the next" in me.told.get("line", ""))
            await me.say(wish="player")
            await me.until(lambda: any(keys.any() for keys in world.steps))
            await me.say(wish="record")
            await me.until(lambda: me.frames[-1]["recording"])
            await me.say(wish="pause")
            await me.until(lambda: me.told["state"] == "paused")

    with served(tmp_path, world) as site:
        asyncio.run(visit())


def test_a_world_that_fails_says_why_in_the_browser(tmp_path):
    async def visit():
        async with browser(site) as me:
            await me.role("plays")
            await me.until(lambda: "over" in me.told)
            assert me.told["over"].startswith("Out of memory")

    with served(tmp_path, FakeWorld(0.002, fails_at=5, error=MemoryError("cache"))) as site:
        asyncio.run(visit())


def test_the_page_knows_the_keys_that_are_bound_but_none_that_would_close_it():
    keys = for_browsers(Keys(shipped().bound | {"forward": ["z", "up"]}))
    bound = keys.in_browsers()
    assert bound["z"] == bound["arrowup"] == "forward" and "w" not in bound
    assert bound[" "] == "fire" and "control" not in bound and "ctrl" not in bound
    assert bound["shift"] == "run" and bound["f8"] == "record" and "escape" not in bound
    assert ("Space", "fire") in keys.help()


def test_the_page_asks_nobody_else_for_anything():
    assert "//" not in PAGE.read_text().replace("// ", "")


def test_served_from_the_command_line_a_game_is_played_to_its_end(tmp_path, capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    heard = []

    async def visit():
        for _ in range(int(PATIENCE / 0.01)):
            try:
                async with browser(type("Site", (), {"port": port})) as me:
                    await me.until(lambda: "over" in me.told)
                    return heard.append(me.told["over"])
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.01)

    visitor = threading.Thread(target=lambda: asyncio.run(visit()))
    visitor.start()
    words = ["--port", str(port), "frames=20", "fps=0", "record=true", f"recordings={tmp_path}"]
    assert serve.main(words, lambda *_: FakeWorld(), lambda cfg: openings()) == 0
    visitor.join(PATIENCE)
    assert heard == ["The game has ended."]
    out = capsys.readouterr().out
    assert f"Open http://127.0.0.1:{port}/ in a browser" in out and "Recorded: " in out


@pytest.mark.parametrize(
    ("word", "line"),
    [("--port=70000", "ports go from 0 to 65535"), ("quality=0", "JPEG has 1 to 95"), ("prt=1", "port?")],
)
def test_a_wrong_word_is_named(word, line):
    with pytest.raises(UsageError, match=line.replace("?", r"\?")):
        serve.settings([word])


def test_a_port_that_is_taken_is_named_before_anything_is_loaded():
    def never(*_):
        raise AssertionError("loaded")

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} is taken"):
            serve.main([f"port={port}"], never, lambda cfg: openings())


def test_without_its_package_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "app.site", None)
    monkeypatch.delitem(sys.modules, "app.site")
    monkeypatch.delattr("app.site")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(PackageError, match=r"pip install -e '\.\[serve\]'"):
        serve.main([])
