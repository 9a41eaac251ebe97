"""What notebooks show, and files that hostile code wants to leave somewhere."""

from __future__ import annotations

import base64
import os
import pathlib
from html.parser import HTMLParser
from typing import List

import pytest

from belljar import Belljar, Result, ResultFile
from belljar.results import result_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: List[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)


def test_output_is_escaped(client: Belljar) -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(2)></pre>"
    result = client.run("python", f"import sys; print({attack!r}); print({attack!r}, file=sys.stderr); sys.exit(1)")
    shown = result._repr_html_()
    assert Tags(shown).found == ["pre", "pre", "p", "small"] and "&lt;script&gt;" in shown


def test_the_name_of_a_file_is_escaped(client: Belljar) -> None:
    name = "\"><script>x.png"
    code = f"import base64; open({name!r}, 'wb').write(base64.b64decode({base64.b64encode(PNG).decode()!r}))"
    result = client.run("python", code, collect=["*.png"])
    assert [one.path for one in result.files] == [name]
    assert Tags(result._repr_html_()).found == ["p", "img"]
    assert result._repr_png_() == PNG == result.files[0]._repr_png_()


def test_what_is_no_picture_is_not_shown_as_one(client: Belljar) -> None:
    result = client.run("sh", "echo '<script>' > a.png", collect=["*.png"])
    assert result._repr_png_() is None and result.files[0]._repr_png_() is None
    assert Tags(result._repr_html_()).found == ["p", "small"]


def test_a_quiet_program(client: Belljar) -> None:
    assert client.run("sh", "true")._repr_html_() == "<p><small>ended with 0</small></p>"


def test_save(client: Belljar, tmp_path: pathlib.Path) -> None:
    result = client.run("sh", "mkdir d; echo one > d/a; echo two > b", collect=["**"])
    saved = result.save(tmp_path / "new")
    assert {path.relative_to(tmp_path / "new").as_posix() for path in saved} >= {"d/a", "b"}
    assert (tmp_path / "new" / "d" / "a").read_text() == "one\n" and result.file("b").text == "two\n"
    with pytest.raises(FileExistsError):
        result.save(tmp_path / "new")
    result.save(tmp_path / "new", overwrite=True)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//b", "./x", "", ".git/config", "a/.GIT/hooks/x", "a\0b"])
def test_a_path_that_escapes_is_refused(path: str, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "folder"
    file = ResultFile(path, 1, b"x")
    with pytest.raises(ValueError, match="not saved"):
        file.save(folder)
    good = ResultFile("good", 1, b"x")
    result = Result("run_1", "exited", 0, "", "", files=(good, file))
    with pytest.raises(ValueError, match="not saved"):
        result.save(folder)
    assert not (folder / "good").exists()
    assert sorted(os.listdir(tmp_path)) == ["folder"]


def test_a_link_in_the_folder_is_not_followed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "file").symlink_to(tmp_path / "outside" / "f")
    for path in ("link/x", "file"):
        with pytest.raises(ValueError, match="is a link"):
            ResultFile(path, 1, b"x").save(folder, overwrite=True)
    assert os.listdir(tmp_path / "outside") == []


def test_a_newer_server_may_say_more() -> None:
    result = result_of(
        {
            "id": "run_1", "status": "hibernated", "exit_code": 0, "stdout": "", "stderr": "", "mood": "good",
            "usage": {"wall_ms": 1.0, "joules": 5}, "isolation": {"kept": ["time"], "waived": [], "rating": 5},
            "decision": {"action": "allow", "rule": "r", "reason": "", "by": "policy", "weight": 1},
        }
    )  # fmt: skip
    assert result.raw["mood"] == "good" and result.status == "hibernated" and not result.ok
    assert result.usage.wall_ms == 1.0 and result.isolation.kept == ("time",) and result.usage.cpu_ms == 0.0
