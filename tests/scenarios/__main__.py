"""Write the real output into transcripts; look at the difference before keeping it."""

import sys
from pathlib import Path

from tests.scenarios.runner import Transcript

for name in sys.argv[1:]:
    path = Path(name)
    path.write_text(Transcript().run(path.read_text()))
