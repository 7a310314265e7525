"""The documents as a site: `make docs` writes it below `var/docs`; Sphinx reads this file.

The pages are the same Markdown files that stand here; `index.md` holds the order of all of them.
The product needs none of it. Nothing is fetched from elsewhere when a page is shown.
"""

project = "Holdfast"
author = "the Holdfast contributors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
# Headings are link targets by the names that GitHub gives them, so that a link works in both.
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Holdfast"
html_show_sphinx = False
html_copy_source = False
# Diagrams stay text: drawing them would need a program from elsewhere in the reader's browser.
suppress_warnings = ["misc.highlighting_failure"]
