"""The `[notify]` tables: what is refused, in which words, and never with a secret in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwatch_server.errors import GradwatchError
from gradwatch_server.notify.secrets import redacted
from gradwatch_server.settings import Settings, load_settings
from tests.support.receiver import SECRET

URL = f"json://ada:{SECRET}@127.0.0.1:9/hooks/{SECRET}"


def settings_of(folder: Path, text: str) -> Settings:
    (folder / "gradwatch.toml").write_text(text)
    return load_settings(folder / "gradwatch.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'url = "{URL}"\nurll = "{URL}"', "'notify.oncall.urll' is not known; there are type"),
        (f'url = "{URL}"\ntype = "pager"', "'notify.oncall.type': Input should be one of apprise"),
        (f'url = ["{URL}"]', "'notify.oncall.url': should be a text in quotes, such as"),
        (f'url = "{URL}"\nurl_env = 5', "'notify.oncall.url_env': should be a text in quotes, suc"),
        (
            f'url = "{URL}"\nresolved = 7',
            "'notify.oncall.resolved': should be true or false, got 7",
        ),
        (
            f'url = "{URL}"\ngroup_wait_s = "x"',
            "'notify.oncall.group_wait_s': should be a number, got 'x'",
        ),
        (
            f'url = "{URL}"\nseverities = "critical"',
            '\'notify.oncall.severities\': should be a list, such as ["one", "two"], got \'crit',
        ),
        (f'url = "{URL}"\nurl_env = "X"', "url_env and url_file, and has url and url_env"),
        ('rules = ["vanishing"]', "'notify.oncall': should have one of url, url_env and url_file"),
        (f'url = "{URL}"\nrules = ["nonfinit"]', "'notify.oncall.rules': 'nonfinit' fits no rule"),
        (f'url = "{URL}"\nrules = "vanishing"', "'notify.oncall.rules': Input should be a list of"),
        (f'url = "{URL}"\nseverities = ["bad"]', "'notify.oncall.severities.0': Input should be"),
        (f'url = "{URL}"\nseverities = []', "'notify.oncall.severities': should not be emp"),
        (f'url = "{URL}"\ngroup_by = ["layer"]', "'notify.oncall.group_by.0': Input should be"),
        (f'url = "{URL}"\ngroup_wait_s = -1', "'notify.oncall.group_wait_s': Input should be gre"),
        (
            'url = "http://127.0.0.1:9093"\ntype = "alertmanager"\ngroup_wait_s = 60',
            "'notify.oncall.group_wait_s': is for no target of type alertmanager, which",
        ),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is(text: str, says: str, tmp_path: Path) -> None:
    """The key, what is allowed, and what was given where that cannot be a URL."""
    with pytest.raises(GradwatchError) as caught:
        settings_of(tmp_path, f"[notify.oncall]\n{text}\n")

    assert says in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'notify = "{URL}"', "'notify': should be a table of settings"),
        (f'[notify]\noncall = "{URL}"', "'notify.oncall': should be a table of settings"),
        (f'[notify."on call"]\nurl = "{URL}"', "'notify.on call': the name of a target is up to"),
        (f'[notify]\nurl = "{URL}"', "'notify.url': should be a table of settings"),
        (
            "".join(f'[notify.t{n}]\nurl = "{URL}"\n' for n in range(65)),
            "'notify': Dictionary should have at most 64 items",
        ),
    ],
)
def test_tables_that_are_none_are_named(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(GradwatchError) as caught:
        settings_of(tmp_path, text)

    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


def test_no_url_is_in_what_is_printed_of_settings(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f'[notify.oncall]\nurl = "{URL}"\n')

    assert settings.notify.root["oncall"].url is not None
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert SECRET not in shown


def test_the_url_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[notify.a]\nurl_env = "HOOK"\n[notify.b]\nurl_file = "{file}"\n'
    file = tmp_path / "url"
    targets = settings_of(tmp_path, text.format(file=file)).notify.root
    for name, says in (("a", "HOOK is not set"), ("b", f"cannot read {file}: No such file")):
        with pytest.raises(GradwatchError, match=f"setting 'notify.{name}.*{says}"):
            targets[name].notifier(name)
    monkeypatch.setenv("HOOK", URL)
    file.write_text(URL + "\n")

    assert targets["a"].notifier("a").name == "apprise"
    assert targets["b"].notifier("b").name == "apprise"

    file.write_text(f"{URL} {URL}")
    with pytest.raises(GradwatchError, match="should have one line") as caught:
        targets["b"].notifier("b")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", [f"jsn://{SECRET}@host", f"slack://{SECRET}", SECRET])
def test_a_url_that_apprise_does_not_know_is_refused(
    url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = settings_of(tmp_path, f'[notify.oncall]\nurl = "{url}"\n').notify.root["oncall"]
    with pytest.raises(GradwatchError, match="apprise does not take the URL") as caught:
        target.notifier("oncall")

    assert "'notify.oncall.url'" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in capfd.readouterr().err


def test_nothing_but_the_scheme_of_a_url_is_shown(tmp_path: Path) -> None:
    target = settings_of(
        tmp_path, '[notify.oncall]\nurl = "ftp://bob:hunter2pass@corp.example/p"\n'
    ).notify.root["oncall"]
    with pytest.raises(GradwatchError, match="which begins with ftp://;") as caught:
        target.notifier("oncall")

    assert not any(part in str(caught.value) for part in ("bob", "h...s", "corp", "example/p"))


@pytest.mark.parametrize(
    "url",
    [
        *(f"ftp://{SECRET}", SECRET, "http://", f"http://a/?q={SECRET}"),
        *(f"http://{SECRET}:{port}" for port in (0, -1, 99_999)),
    ],
)
def test_a_url_that_is_of_no_alertmanager_is_refused(url: str, tmp_path: Path) -> None:
    text = f'[notify.am]\ntype = "alertmanager"\nurl = "{url}"\n'
    target = settings_of(tmp_path, text).notify.root["am"]
    with pytest.raises(GradwatchError, match=r"such as http://127\.0\.0\.1:9093") as caught:
        target.notifier("am")

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"could not reach {URL}",
        f"POST /hooks/{SECRET} failed",
        f"bad token {SECRET}",
        "user ada%40corp is not known",
        "user ada@corp is not known",
    ],
)
def test_nothing_of_a_url_is_left_in_a_text(text: str) -> None:
    found = redacted(text, f"json://ada%40corp:{SECRET}@127.0.0.1:9/hooks/{SECRET}?x={SECRET}")

    assert SECRET not in found
    assert "corp" not in found
    assert "***" in found


@pytest.mark.parametrize("url", ["gradwatch.corp", "ftp://x", "https://u:p@x", "https://x/?a=1"])
def test_where_the_page_is_must_be_an_address(url: str) -> None:
    with pytest.raises(GradwatchError, match="'public_url'"):
        load_settings(None, public_url=url)
