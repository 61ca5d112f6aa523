"""`make docs`: write the generated parts of the documents anew."""

from __future__ import annotations

from readmes import generated

generated.write()
