"""`cluster init`: founding a member of a real cluster, as `up` does for a local one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduler.local.errors import LocalError


def found_member(
    config_file: Path, *, settings: Mapping[str, str], founding_file: Path | None
) -> dict[str, Any]:
    """Found the data directory that a controller's configuration names; returns its record.

    Without `founding_file` a new cluster is drawn. A founded directory keeps its record. Raises
    LocalError.
    """
    from scheduler.controller.config import ConfigMistakes, load_config
    from scheduler.controller.founding import Founding, NotFounded, found
    from wal.errors import WalError

    try:
        config = load_config(config_file)
        founding = None
        if founding_file is not None:
            founding = Founding(**json.loads(founding_file.read_bytes()))
        record = found(config, settings, founding=founding)
    except (OSError, ConfigMistakes, NotFounded, WalError, ValueError, TypeError) as error:
        raise LocalError(
            "the member was not founded",
            why=" ".join(str(error).split()),
            hint="correct it and call again: founding twice changes nothing",
            kind="usage" if isinstance(error, ConfigMistakes | OSError) else "refused",
            code="not_founded",
        ) from None
    return {**asdict(record), "data_dir": str(config.data_dir)}
