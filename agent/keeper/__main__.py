from __future__ import annotations

import sys

from agent.keeper.main import main

sys.exit(main())
