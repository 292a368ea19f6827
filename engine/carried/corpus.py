"""The training text: fetched from Debian, cut into chapters, split, and tokenized.

Jane Austen's six novels come from the package r-cran-janeaustenr, the King James Bible from
bible-kjv and bible-kjv-text. A chapter is one document; whole chapters are held out, and neither
the tokenizer nor the training sees them.
"""

from __future__ import annotations

import random
import re
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BEGIN, END = "<|begin|>", "<|end|>"
BEGIN_ID, END_ID = 0, 1  # training a tokenizer numbers the special tokens first
PACKAGES = ("r-cran-janeaustenr", "bible-kjv", "bible-kjv-text")
_NOVELS = Path("usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
_HEADING = re.compile(r"^chapter ([ivxlc]+|\d+)\.?$", re.IGNORECASE)
# What belongs to the edition and not to a chapter: lines, paragraphs, and all that follows a note.
_FURNITURE = re.compile(r"^(volume [ivx]+|the end|finis)\.?$", re.IGNORECASE)
_INSERTED = re.compile(r"^\[(at this point|end volume)", re.IGNORECASE)
_EDITORS_NOTE = re.compile(r"^a note on the text$", re.IGNORECASE)
_VERSE = re.compile(r"^(\w*?[A-Za-z])(\d+):\d+ +(.*)$")


@dataclass(frozen=True)
class Document:
    """One chapter: `book` names the work it belongs to, `text` has its paragraphs or verses."""

    book: str
    chapter: int
    text: str

    @property
    def is_bible(self) -> bool:
        """Whether the chapter is from the Bible; the novels' titles are in capitals."""
        return not self.book.isupper()


def fetch(folder: Path) -> list[Document]:
    """Download and unpack the Debian packages into `folder` (needs apt-get, dpkg-deb); every chapter."""
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.deb")):
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, check=True)
    for archive in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
    editions = r_character_vectors((folder / _NOVELS).read_bytes())
    documents = [document for lines in editions for document in novel(lines)]
    # The program looks for its data in the folder that it runs in.
    verses = subprocess.run(
        ["../bin/bible", "-f", "gen1:1-rev22:21"],
        cwd=folder / "usr/lib",
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return documents + bible(verses.splitlines())


def r_character_vectors(database: bytes) -> list[list[str]]:
    """The character vectors of an R lazy-load database whose records hold nothing else.

    A record is a big-endian length and a zlib stream; inside is R's XDR serialization, version 3
    ("R Internals", section 1.8): header, native encoding, then vector type 16 with a count and its strings.
    """
    vectors, start = [], 0
    while start < len(database):
        inflate = zlib.decompressobj()
        record = inflate.decompress(database[start + 4 :])
        start = len(database) - len(inflate.unused_data)
        (encoding_length,) = struct.unpack_from(">I", record, 14)
        at = 18 + encoding_length
        kind, count = struct.unpack_from(">II", record, at)
        if record[:2] != b"X\n" or kind & 0xFF != 16:
            raise ValueError("the database holds something other than character vectors")
        at, lines = at + 8, []
        for _ in range(count):
            flags, length = struct.unpack_from(">II", record, at)
            # Bit 3 of the level (bits 12 up) marks UTF-8, bit 2 Latin-1; plain ASCII has bit 6.
            encoding = "latin-1" if flags >> 12 & 4 else "utf-8"
            lines.append(record[at + 8 : at + 8 + length].decode(encoding))
            at += 8 + length
        vectors.append(lines)
    return vectors


def novel(lines: list[str]) -> list[Document]:
    """Chapters of one novel, from the hard-wrapped lines of its edition; the first line is the title.

    Lines are joined into paragraphs, paragraphs separated by an empty line. The underscores that
    stand for italics go.
    """
    title, chapters = lines[0].strip().upper(), list[list[str]]()
    for line in lines:
        stripped = line.strip()
        if _EDITORS_NOTE.match(stripped):
            break
        if _HEADING.match(stripped):
            chapters.append([])
        elif chapters and not _FURNITURE.match(stripped):
            chapters[-1].append(stripped.replace("_", ""))
    documents = []
    for number, chapter in enumerate(chapters, 1):
        paragraphs = (" ".join(block.split()) for block in re.split(r"\n\n+", "\n".join(chapter)))
        text = "\n\n".join(p for p in paragraphs if p and not _INSERTED.match(p))
        documents.append(Document(title, number, text))
    return documents


def bible(lines: list[str]) -> list[Document]:
    """Chapters from lines like "Ge1:1 In the beginning ..."; a verse is a line, without its number."""
    chapters: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        if not (match := _VERSE.match(line)):
            raise ValueError(f"not a verse: {line!r}")
        book, chapter, text = match.groups()
        chapters.setdefault((book, int(chapter)), []).append(" ".join(text.split()))
    return [Document(book, number, "\n".join(verses)) for (book, number), verses in chapters.items()]


def split(documents: list[Document], share: float, seed: int) -> tuple[list[Document], list[Document]]:
    """(training, held out): `share` of each novel's chapters, at least one, and of all Bible chapters."""
    groups: dict[str, list[Document]] = {}
    for document in documents:
        groups.setdefault("" if document.is_bible else document.book, []).append(document)
    chooser, held = random.Random(seed), set[Document]()
    for _, group in sorted(groups.items()):
        held.update(chooser.sample(group, max(1, round(len(group) * share))))
    return [d for d in documents if d not in held], [d for d in documents if d in held]


def train_tokenizer(documents: list[Document], vocab_size: int) -> Tokenizer:
    """Byte-level BPE in which every byte has a token; encoding puts the begin token first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BEGIN, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.text for d in documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, document: Document) -> list[int]:
    """A document as the model sees it: begin, text, end."""
    return [*tokenizer.encode(document.text).ids, END_ID]
