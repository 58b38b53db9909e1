"""Makes the repository root importable: the recipe is run as ``python -m deploy.demo.train`` and is no installed
package.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
