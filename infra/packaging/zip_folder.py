"""Packs a folder into a .zip that has the same bytes each time.

    python zip_folder.py FOLDER FILE

All files have the time of SOURCE_DATE_EPOCH, in UTC; names begin below the folder.
"""

import os
import sys
import time
import zipfile
from pathlib import Path

EARLIEST = 315532800  # 1980, the first year that a .zip can name


def pack(folder: Path, archive: Path, moment: int) -> None:
    """Write the archive of the files of a folder, sorted by name.

    Args:
        folder: what is packed, with all below it.
        archive: the file to write.
        moment: the time of all files, in seconds since 1970.
    """
    stamp = time.gmtime(max(moment, EARLIEST))[:6]
    with zipfile.ZipFile(archive, "w") as found:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), stamp)
                entry.external_attr = 0o644 << 16
                is_packed = path.suffix in {".whl", ".exe"}
                entry.compress_type = (
                    zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
                )
                found.writestr(entry, path.read_bytes())


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["SOURCE_DATE_EPOCH"]))
