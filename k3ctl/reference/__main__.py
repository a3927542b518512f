"""Write docs/reference/."""

from __future__ import annotations

from k3ctl.reference import FOLDER, texts

FOLDER.mkdir(parents=True, exist_ok=True)
for name, text in texts().items():
    (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
