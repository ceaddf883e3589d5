import hashlib
import http.server
import threading

import pytest

from stoix_like import cli, weights

CONTENT = b"weights"


@pytest.fixture
def served(tmp_path, monkeypatch):
    directory = tmp_path / "served"
    directory.mkdir()
    (directory / "disco_103.npz").write_bytes(CONTENT)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(CONTENT).hexdigest())

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=directory)

        def do_GET(self):
            if self.path != "/again":
                return super().do_GET()
            self.send_response(302)
            self.send_header("Location", "/again")
            self.end_headers()

        def log_message(self, *args):
            requests.append(args)

    requests = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield directory, f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    server.server_close()


def run(capsys, *arguments):
    cli.main(["fetch", "disco103", *map(str, arguments)])
    return capsys.readouterr().out


def test_the_file_is_downloaded_once(served, capsys):
    _, address, requests = served
    url = f"{address}/disco_103.npz"
    path = weights.default_path()
    assert run(capsys, "--url", url) == f"wrote {path} (7 bytes): system.weights=null finds it\n"
    assert path.read_bytes() == CONTENT
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert run(capsys, "--url", url) == f"{path} is there already: system.weights=null finds it\n"
    assert len(requests) == 1


def test_a_file_elsewhere_is_named(served, capsys, tmp_path):
    directory, _, _ = served
    out = tmp_path / "new/own.npz"
    message = run(capsys, "--out", out, "--url", (directory / "disco_103.npz").as_uri())
    assert message == f"wrote {out} (7 bytes): use it with system.weights={out}\n"
    assert out.read_bytes() == CONTENT


def test_another_file_is_not_written(served, refused):
    directory, address, _ = served
    (directory / "disco_103.npz").write_bytes(b"other")
    assert "the sha256 of the file is" in refused("fetch", "disco103", "--url", f"{address}/disco_103.npz")
    assert not weights.default_path().exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *((url, "") for url in ("{address}/missing", "http://127.0.0.1:1/x", "nothing", "http://[", "file:///nothing")),
        # Redirections without end.
        ("{address}/again", " (HTTPError: HTTP Error 302: "),
    ],
)
def test_a_download_that_fails_is_reported_in_one_line(served, refused, url, words):
    message = refused("fetch", "disco103", "--url", url.format(address=served[1]))
    assert f"cannot be downloaded{words}" in message
    assert message.count("\n") == 1


def test_a_place_that_cannot_be_written_is_reported(served, refused, tmp_path):
    (tmp_path / "file").write_text("")
    for out, words in ((tmp_path / "file/own.npz", "cannot be written"), (tmp_path, "(Is a directory): choose")):
        assert words in refused("fetch", "disco103", "--out", out, "--url", (served[0] / "disco_103.npz").as_uri())
