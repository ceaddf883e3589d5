"""A server with the part of the Hugging Face Hub's HTTP interface that its client needs for small repositories."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def commit(self):
        return hashlib.sha1(repr(sorted(self.server.files.items())).encode()).hexdigest()

    def answer(self, value, status=200, headers=()):
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (("Content-Length", len(content)), ("X-Repo-Commit", self.commit()), *headers):
            self.send_header(name, str(text))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in wanted]
            self.answer({"files": modes})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    self.server.files.pop(line["value"]["path"], None)
            url = f"http://{self.headers['Host']}/me/policy/commit/{self.commit()}"
            self.answer({"success": True, "commitUrl": url, "commitOid": self.commit(), "pullRequestUrl": None})
        else:
            if self.path.endswith("/repos/create"):
                asked = json.loads(body)
                self.server.private.append(asked.get("private") or asked.get("visibility") == "private")
            self.answer({"url": f"http://{self.headers['Host']}/me/policy", "errors": [], "warnings": []})

    def do_GET(self):
        path = self.path.partition("?")[0]
        if "/tree/" in path:
            files = self.server.files.items()
            self.answer([{"type": "file", "path": name, "size": len(text), "oid": "0"} for name, text in files])
        elif found := re.match(r".*/resolve/[^/]+/(.*)", path):
            text = self.server.files[found[1]]
            self.answer(text, headers=[("ETag", f'"{hashlib.sha1(text).hexdigest()}"')])
        elif path.startswith("/api/models/me/policy"):
            siblings = [{"rfilename": name} for name in self.server.files]
            self.answer({"id": "me/policy", "sha": self.commit(), "siblings": siblings, "tags": []})
        else:
            self.answer({"error": "Repository not found"}, 404, [("X-Error-Code", "RepoNotFound")])

    do_HEAD = do_GET


@contextlib.contextmanager
def serve(files, private=None):
    """Serve one repository, whose files are `files`, a dictionary of bytes by path; yield the address.

    `private` receives whether each repository that is created is to be private.
    """
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.private = files, private if private is not None else []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
