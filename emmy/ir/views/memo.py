"""How many bodies' views are remembered: schedules, configs and kernels of one body all ask for the same view."""

from typing import Final

VIEWS: Final = 4096
