"""Looks for what one call of the Python tool planted in all the memory that later calls can read.

`python memory_scan.py ISOLATION` prints what was found as JSON; test_hostile_programs.py runs it as root and as
an ordinary user.
"""

import asyncio
import base64
import hashlib
import json
import os
import secrets
import sys

from rtpo.tools.python.tool import PythonSettings, PythonTool, close_pools
from rtpo.types import ToolOutcome

PIECE = 16
SCAN = """
import ctypes, hashlib, os, re
libc = ctypes.CDLL(None)
libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_void_p], ctypes.c_void_p
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
PAGE, SPAN = 1 << 12, 1 << 24
places = ctypes.create_string_buffer(SPAN // PAGE)
reader, writer = os.pipe()
os.set_blocking(writer, False)
def is_readable(page):
    if libc.write(writer, ctypes.c_void_p(page), 1) != 1:
        return False
    os.read(reader, 1)
    return True
def pages(begin, size):
    # what is mapped in whole is seen at once; what is not, in halves
    if libc.mincore(begin, size, places) == 0:
        yield from range(begin, begin + size, PAGE)
    elif size > PAGE:
        yield from pages(begin, size // 2)
        yield from pages(begin + size // 2, size // 2)
anchors = [
    id(int),
    id([]),
    id(None),
    libc.sbrk(0),
    ctypes.cast(libc.write, ctypes.c_void_p).value,
    ctypes.c_void_p.in_dll(libc, "environ").value,
]
seen, found, total = set(), {}, 0
wanted = {bytes.fromhex(head): bytes.fromhex(digest) for head, digest in WANTED}
pattern = re.compile(b"|".join(map(re.escape, wanted)))
waiting = [anchor // SPAN * SPAN for anchor in anchors]
tail, last = b"", 0
while waiting:
    span = waiting.pop()
    if span in seen or span < 0 or span >= 1 << 47:
        continue
    seen.add(span)
    is_used = False
    for page in pages(span, SPAN):
        is_used = True
        if not is_readable(page):
            continue
        total += 1
        here = ctypes.string_at(page, PAGE)
        text = tail + here if last + PAGE == page else here
        for match in pattern.finditer(text):
            piece = text[match.start() : match.start() + PIECE]
            if len(piece) == PIECE and hashlib.sha256(piece).digest() == wanted[match.group()]:
                found[match.group()] = True
        tail, last = here[-PIECE:], page
    if is_used:
        waiting += [span + SPAN * step for step in range(-8, 9)]
mapped = 0
try:
    libc.prctl(4, 1, 0, 0, 0)
    ranges = [line.split() for line in open("/proc/self/maps")]
    mapped = sum((int(b, 16) - int(a, 16)) // PAGE for place, kind, *_ in ranges for a, b in [place.split("-")]
                 if kind[0] == "r")
except OSError:
    pass
print(len(found), total, mapped)
"""
"""a program that knows of each piece its first bytes and its digest alone: it has none itself"""


def planted(text: str) -> list[tuple[str, str]]:
    """Of 64 bytes: each piece's first six, and its digest."""
    pieces = [text[place : place + PIECE].encode() for place in range(0, len(text), PIECE)]
    return [(piece[:6].hex(), hashlib.sha256(piece).hexdigest()) for piece in pieces]


def main() -> None:
    settings = PythonSettings(workers=1, output_characters=1000, isolation=sys.argv[1])  # type: ignore[arg-type]

    def run(program: str) -> str:
        result = asyncio.run(PythonTool(settings).call({"code": program}, []))
        if result.outcome is not ToolOutcome.OK:
            raise RuntimeError(f"{result}")
        return result.output

    code, output = (base64.b64encode(secrets.token_bytes(48)).decode() for _ in range(2))
    hidden = [ord(letter) ^ 1 for letter in output]
    if run(f"# {code}\nprint(''.join(chr(letter ^ 1) for letter in {hidden}))") != output:
        raise RuntimeError("nothing was planted")
    scan = f"PIECE, WANTED = {PIECE}, {planted(code) + planted(output)}\n{SCAN}"
    later = [int(word) for word in run(scan).split()]
    own = base64.b64encode(secrets.token_bytes(48)).decode()
    control = run(f"PIECE, WANTED = {PIECE}, {planted(own)}\nkept = {own!r}\n{SCAN}")
    found = {"later": later, "control": [int(word) for word in control.split()], "user": os.getuid()}
    print(json.dumps(found))
    close_pools()


if __name__ == "__main__":
    main()
