"""A patch that adds files, as git writes it."""

from __future__ import annotations

import hashlib

from sweeps.promote.promotion import Files


def patch_of(files: Files) -> str:
    """The patch, for `git apply`; every file is new and ends with a newline."""
    return "".join(_added(path, files[path]) for path in sorted(files))


def _added(path: str, text: str) -> str:
    lines = text.splitlines(keepends=True)
    mode = "100755" if text.startswith("#!") else "100644"
    head = (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 0000000..{_blob(text)[:7]}\n"
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    )
    return head + "".join(f"+{line}" for line in lines)


def _blob(text: str) -> str:
    """Git's id of a file's content."""
    data = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
