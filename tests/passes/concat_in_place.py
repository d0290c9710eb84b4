"""Two operators write parts of a joined tensor."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(lambda x, y: dml.join([dml.negate(x), dml.exp(y)], axis=0),
                  normal((4, 24), (2, 24)))
