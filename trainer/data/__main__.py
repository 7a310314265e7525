"""`python -m trainer.data build|verify|info|adopt`: make and check indexed datasets.

Exit 0 when all is well, 1 with one line on stderr that says what is wrong with which file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.data.manifest import DOCUMENTS, TOKENIZERS, Manifest, check_files, read_manifest, verify
from trainer.data.sources import check_vocabulary
from trainer.errors import DataInvalid

OK, FAULTY = 0, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, report. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        said = options.run(options)
    except (DataInvalid, OSError) as error:
        print(f"trainer.data: {error}", file=sys.stderr)
        return FAULTY
    print(said, flush=True)
    return OK


def _build(options: argparse.Namespace) -> str:
    _prepare_megatron()
    from trainer.data.build import build

    manifest = build(
        options.input, options.output, tokenizer=options.tokenizer, documents=options.documents, force=options.force
    )
    return f"{options.output}: {_words(manifest)}"


def _adopt(options: argparse.Namespace) -> str:
    _prepare_megatron()
    from trainer.data.build import adopt

    manifest = adopt(options.prefix, vocab_size=options.vocab_size, end_of_document=options.end_of_document)
    return f"{options.prefix}: {_words(manifest)}"


def _verify(options: argparse.Namespace) -> str:
    manifest = verify(options.prefix)
    return f"{options.prefix}: every byte is as written; {_words(manifest)}"


def _info(options: argparse.Namespace) -> str:
    manifest = read_manifest(options.prefix)
    check_files(options.prefix, manifest)
    lines = [f"{options.prefix}: {_words(manifest)}"]
    lines += [f"tokenizer {manifest.tokenizer}, end of document {manifest.end_of_document}, tokens as {manifest.dtype}"]
    lines += [f"source {source.name}: {source.bytes} bytes" for source in manifest.sources]
    if options.sequence_length:
        windows = (manifest.tokens - 1) // options.sequence_length
        lines.append(f"{windows} samples of {options.sequence_length} tokens in a data epoch")
    if options.vocab_size:
        check_vocabulary(str(options.prefix), manifest.vocab_size, known=options.vocab_size)
    return "\n".join(lines)


def _words(manifest: Manifest) -> str:
    return f"{manifest.documents} documents, {manifest.tokens} tokens, vocabulary {manifest.vocab_size}"


def _prepare_megatron() -> None:
    import logging
    import warnings

    from trainer import device

    warnings.filterwarnings("ignore")
    logging.getLogger().setLevel(logging.WARNING)
    device.prepare_import()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.data", description="Indexed datasets for training.")
    commands = parser.add_subparsers(required=True, metavar="build|verify|info|adopt")
    build = commands.add_parser("build", help="text to PREFIX.bin, PREFIX.idx and PREFIX.json")
    build.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE")
    build.add_argument("--output", type=Path, required=True, metavar="PREFIX")
    build.add_argument("--tokenizer", choices=TOKENIZERS, default=TOKENIZERS[0])
    build.add_argument("--documents", choices=DOCUMENTS, default=DOCUMENTS[0], help="what one document is")
    build.add_argument("--force", action="store_true", help="replace a dataset of that name")
    build.set_defaults(run=_build)
    check = commands.add_parser("verify", help="read every byte and compare it with the manifest")
    check.add_argument("prefix", type=Path, metavar="PREFIX")
    check.set_defaults(run=_verify)
    info = commands.add_parser("info", help="what a dataset holds")
    info.add_argument("prefix", type=Path, metavar="PREFIX")
    info.add_argument("--sequence-length", type=int, default=0, help="say how many samples that makes")
    info.add_argument("--vocab-size", type=int, default=0, help="refuse tokens that such a model does not know")
    info.set_defaults(run=_info)
    adopt = commands.add_parser("adopt", help="write the manifest of a .bin and .idx of another tool")
    adopt.add_argument("prefix", type=Path, metavar="PREFIX")
    adopt.add_argument("--vocab-size", type=int, required=True)
    adopt.add_argument("--end-of-document", type=int, default=None, metavar="TOKEN")
    adopt.set_defaults(run=_adopt)
    return parser


if __name__ == "__main__":
    sys.exit(main())
